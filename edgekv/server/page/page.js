
const BUSY_MS = 250, IDLE_MS = 600, LOST_MS = 2000, OLD_S = 2;
const TIERS = { arena: "Arena: hot pages", home: "Home: all pages", sketches: "Sketches of all keys", tables: "Page tables", work: "Work space",
  store_ram: "Prefix cache in RAM", store_disk: "Prefix cache on disk" };
const maps = new Map();  // by stream
const at = (id) => document.getElementById(id);

// asks the server this page came from; its key stays in this tab
async function ask(path, body) {
  const key = sessionStorage.getItem("edgekv-key"), headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  const answer = await fetch(path, { cache: "no-store", headers, ...(body ? { method: "POST", body: JSON.stringify(body) } : {}) });
  if (!answer.ok) throw Object.assign(new Error(`the server answers ${answer.status}`), { locked: answer.status === 401 });
  const said = await answer.json();
  // newer than what is said: a batch that is computed has no figures yet
  return path === "edgekv/state" ? { ...said, busy: answer.headers.get("X-EdgeKV-Busy") === "1" } : said;
}

const whole = (n) => Math.round(n).toLocaleString("en-US");
const few = (n) => (n < 9.95 ? n.toFixed(1) : whole(n));
const percent = (share) => `${share > 0 && share < 0.001 ? (100 * share).toPrecision(1) : few(100 * share)} %`;
const duration = (s) => (s < 59.5 ? `${Math.max(1, Math.round(s))} s` : `${Math.round(s / 60)} min`);
const slotNames = (slots) => `slot${slots.length > 1 ? "s" : ""} ${slots.join(", ")}`;

const bytes = (n, unit = n && Math.floor(Math.log2(n) / 10)) => `${unit ? few(n / 1024 ** unit) : n} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;

// an element with a class and what is in it: text, or other elements
function make(tag, name, ...inside) {
  const made = Object.assign(document.createElement(tag), { className: name });
  made.append(...inside);
  return made;
}

// a card without content is not drawn
function fill(id, ...inside) {
  at(id).replaceChildren(...inside);
  at(id).closest("section").hidden = !inside.length;
}

function showHeader(state) {
  document.title = `EdgeKV: ${state.model}`;
  const context = `${whole(state.n_ctx_slot)} tokens of context${state.n_slots > 1 ? ` × ${state.n_slots}` : ""}`;
  at("model").textContent = `${state.model} · ${context} · mode ${state.mode}`;
  at("version").textContent = `EdgeKV ${state.version}`;
  const n = (what) => state.slots.filter((slot) => slot.doing === what).length, all = n("answering") + n("prefill");
  at("pulse").className = state.busy ? "busy" : "";
  at("status").textContent = !state.busy ? "idle"
    : `${n("answering") ? "answering" : all ? "prefill" : "computing"}${all ? `, ${all} request${all > 1 ? "s" : ""}` : ""}`;
  const note = !state.served ? "EdgeKV is not attached to this model's context: stock llama.cpp serves it, and only its size is known."
    : state.mode === "off" ? "Mode off: stock llama.cpp computes attention. The map shows only what is filled."
      : !state.busy && state.slots.every((slot) => !slot.n_tokens) ? `Nothing computed yet. Send a request to ${new URL("v1", location.href)}, and look here while it is answered.`
        : state.n_layers_served < state.n_layers ? `EdgeKV serves ${state.n_layers_served} of ${state.n_layers} layers, stock llama.cpp the others.` : "";
  fill("note", ...(note ? [note] : []));
}

// past: of the newest seconds in which tokens were chosen; before the first there is the sum since the start
function showFigures({ selection, kept, prompt_tokens: reused, plan }, past) {
  const i = past.rows_per_head.findLastIndex((n) => n !== null);
  const now = i < 0 ? selection : Object.fromEntries(Object.keys(past).map((name) => [name, past[name][i]]));
  const { rows_per_head: rows, visible_per_head: visible, error, coverage } = kept ? {} : now ?? {};  // nobody knows what dropped tokens were worth
  const saved = reused?.seconds_saved >= 0.5 ? `: about ${duration(reused.seconds_saved)} saved` : "";
  const figures = [
    rows && [`${few(visible / rows)}× less`, `KV read per token: ${whole(rows)} of ${whole(visible)} tokens per head`],
    kept && kept[0] < kept[1] && [`${few(kept[1] / kept[0])}× less`, `KV: ${whole(kept[0])} of ${whole(kept[1])} tokens kept, others dropped for good`],
    rows && error !== null && [percent(error), `estimated error of a head${coverage ? `; ${percent(coverage)} of the attention covered` : ""}`],
    reused?.found && [whole(reused.found), `of ${whole(reused.asked)} prompt tokens reused, not read again${saved}`],
    plan && [`${few(plan.times)}×`, `as fast as llama.cpp behind ${whole(plan.depth)} tokens (this machine's plan)`]];
  at("figures").replaceChildren(...figures.filter(Boolean).map(([big, what]) => make("div", "card", make("b", "", big), make("span", "", what))));
}

function slotRow(slot, number) {
  const { doing, n_tokens: n, n_prompt: prompt, n_ctx, tokens_per_second: speed, found_in: found } = slot, reads = doing === "prefill";
  const part = (tokens) => { const made = make("i", ""); made.style.width = `${Math.min(100, 100 * tokens / n_ctx)}%`; return made; };
  const reused = Object.values(found ?? {}).reduce((sum, of) => sum + of, 0), inArena = slot.pages_arena / (slot.pages_arena + slot.pages_home);
  const said = [`${whole(n)} of ${whole(reads ? prompt : n_ctx)} tokens`, doing !== "idle" && speed && `${few(speed)} tok/s`,
    slot.seconds_left !== null && `${duration(slot.seconds_left)} left`, reused && `${whole(reused)} reused (${Object.keys(found).join(", ")})`,
    inArena && `${percent(inArena)} of its pages in the arena`, slot.n_tokens_read_sparsely && `${whole(slot.n_tokens_read_sparsely)} read sparsely`];
  return make("div", "", make("span", "", `Slot ${number} · ${reads ? `prefill ${Math.floor(100 * n / prompt)} %` : doing}`),
    make("div", "track", part(n), ...(reads ? [part(prompt - n)] : [])), make("span", "", said.filter(Boolean).join(" · ")));
}

function showFacts({ tiers, pages, selection, settings, reasons }) {
  const cards = {
    Memory: tiers.map(({ tier, bytes: all, used_bytes: used }) => [TIERS[tier], used === null ? bytes(all) : `${bytes(used)} of ${bytes(all)}`]),
    Arena: pages?.arena_slots && [["Reads from it", percent(selection.hit_rate)], ["Pages that came in", whole(pages.promoted)],
      ["Pages that left", whole(pages.demoted)], ["Copied", bytes(pages.moved_bytes)], ["Tokens waited", `${whole(1000 * pages.stall_seconds)} ms`]],
    "Why pages are where they are": reasons?.map(({ where, why, pages: n }) => [`${where}: ${why}`, whole(n)]),
    Settings: Object.entries(settings ?? {}),
  };
  at("facts").replaceChildren(...Object.entries(cards).filter(([, pairs]) => pairs?.length).map(([title, pairs]) => make("section", "card",
    make("h2", "", title), make("dl", "", ...pairs.flatMap(([name, value]) => [make("dt", "", name), make("dd", "", value)])))));
}

async function showMaps(state) {
  const streams = Map.groupBy(state.slots.keys(), (i) => state.slots[i].stream), shown = [];
  for (const [stream, slots] of streams) {
    const map = await ask(`edgekv/map/${slots[0]}`), holding = slots.filter((i) => state.slots[i].n_tokens);
    if (!map?.n_tokens || !holding.length) continue;
    if (!maps.has(stream)) maps.set(stream, new PageMap());
    const age = state.taken - map.taken, when = age > OLD_S ? `, ${duration(age)} ago` : "";
    maps.get(stream).show(map, `${slotNames(holding).replace("s", "S")}: ${whole(map.n_tokens)} tokens${when}`);
    at("map-what").textContent = `Each row is an attention head (numbers: layers), each column ${whole(map.pages_per_column * map.page_tokens)} tokens, `
      + `${streams.size < state.slots.length ? "in the order of the cache, which the slots share" : "oldest left"}. Stronger: more attention just now.`
      + `${state.pages.arena_slots ? " Blue: in host memory; orange: in the arena." : ""}`;
    shown.push(maps.get(stream).element);
  }
  if (shown.length !== at("maps").children.length || shown.some((one, i) => one !== at("maps").children[i])) fill("maps", ...shown);
}

function showSpeed({ tokens_per_second: speeds }) {
  if (!speeds.length) return fill("speed");
  const top = Math.max(...speeds), n = Math.max(30, speeds.length), shape = (tag, of) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(of)) made.setAttribute(name, value);
    return made;
  };
  const points = speeds.map((speed, i) => `${300 * (n - speeds.length + i) / (n - 1)} ${88 - 84 * speed / top}`);
  const picture = shape("svg", { viewBox: "0 0 300 90", preserveAspectRatio: "none", "aria-hidden": "true" });
  picture.append(shape("path", { d: `M${points.join("L")}h.1` }));
  return fill("speed", make("b", "", `${few(speeds.at(-1))} tok/s`), ` · at most ${few(top)}`, picture);
}

async function once() {
  const [state, past] = await Promise.all([ask("edgekv/state"), ask("edgekv/history")]);
  at("ask-key").hidden = true;
  at("main").hidden = false;
  showHeader(state);
  showFigures(state, past);
  fill("slots", ...state.slots.map((slot, i) => (slot.n_tokens || slot.doing !== "idle") && slotRow(slot, i)).filter(Boolean));
  showSpeed(past);
  showFacts(state);
  await showMaps(state);
  return state.busy ? BUSY_MS : IDLE_MS;
}

async function run() {
  let wait = LOST_MS;
  try {
    if (!document.hidden) wait = await once();
  } catch (error) {
    at("pulse").className = error.locked ? "" : "lost";
    at("status").textContent = error.locked ? "locked" : error instanceof TypeError ? "the server does not answer" : error.message;
    at("ask-key").hidden = !error.locked;
    at("main").hidden = error.locked;
    at("key-wrong").hidden = !sessionStorage.getItem("edgekv-key");
    if (error.locked) return;
  }
  setTimeout(run, wait);
}

at("ask-key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("edgekv-key", at("key").value);
  run();
});
run();
