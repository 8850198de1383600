
"use strict";

// ---- asking the server this page came from; its key stays in this tab

const at = (id) => document.getElementById(id);

class KeyNeeded extends Error {}

async function ask(path) {
  const key = sessionStorage.getItem("edgekv-key");
  const answer = await fetch(`edgekv/${path}`, { cache: "no-store", headers: key ? { Authorization: `Bearer ${key}` } : {} });
  if (answer.status === 401) throw new KeyNeeded();
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
  const said = await answer.json();
  // newer than what is said: a batch that is computed has no figures yet
  if (path === "state") said.busy = answer.headers.get("X-EdgeKV-Busy") === "1";
  return said;
}

// ---- how things are said

const whole = (n) => Math.round(n).toLocaleString("en-US");
const many = (n, what) => `${whole(n)} ${what}${n === 1 ? "" : "s"}`;

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return `${unit && n < 99.95 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

function percent(share) {
  if (share === null || share === undefined) return "–";
  const n = 100 * share;
  return `${n === 0 ? 0 : n < 0.1 ? n.toPrecision(1) : n < 10 ? n.toFixed(1) : Math.round(n)} %`;
}

const speed = (n) => (n === null || n === undefined ? "–" : n < 10 ? n.toFixed(1) : whole(n));

// an element with a class and what is in it: text, or other elements
function make(tag, name, ...inside) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...inside);
  return made;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
