
// ---- the page: cards from /edgekv/state, maps, curves, again and again

const BUSY_MS = 250, IDLE_MS = 600, HISTORY_MS = 1000, LOST_MS = 2000;
const TIERS = {
  arena: ["Arena", "arena", "copies of hot pages, in fast memory"],
  home: ["Home", "home", "all pages, in host memory"],
  sketches: ["Sketches", "other", "a short summary of every key, to know what to read"],
  tables: ["Tables", "other", "where each page is, and what it is worth"],
  work: ["Work space", "other", "what is being computed"],
  store_ram: ["Store, RAM", "good", "prefixes that can come back"],
  store_disk: ["Store, disk", "good", "prefixes that survive a restart"],
};
const ORDERS = {
  own: "the oldest first",
  shared: "in the order of the cache, which all slots share",
  evict: "in the order of the cache: what was dropped makes room for new ones",
};
const MOVED = {
  evict: "The policy drops tokens for good, so that the kept ones stay within their bound.",
  other: "Copies into the arena since the start. Home keeps everything, so that leaving the arena copies nothing.",
};
const PLACES = { resident: ["in the arena", "arena"], moving: ["moving", "moving"], home: ["only at home", "home"], filling: ["filling", "filling"] };
const MOST_MAPS = 4;

const maps = new Map();   // by stream
let chosen = null;        // streams whose maps are shown
let historyAt = -Infinity;

function bar(title, amount, parts, whole_, note) {
  const track = make("div", "track");
  for (const [value, tone] of parts.filter(([value]) => value > 0)) {
    const part = make("i");
    part.style.background = `var(--${tone})`;
    part.style.width = `${Math.min(100, 100 * value / Math.max(1, whole_))}%`;
    track.append(part);
  }
  return make("div", "bar", make("div", "label", make("b", "", title), make("span", "", amount)), track, ...(note ? [make("p", "", note)] : []));
}

function list(where, pairs) {
  where.replaceChildren(...pairs.flatMap(([name, value]) => [make("dt", "", name), make("dd", "", value)]));
}

function showHeader(state) {
  document.title = `EdgeKV: ${state.model}`;
  at("model").textContent = `${state.model}, ${bytes(state.weight_bytes)} of weights`;
  at("version").textContent = `EdgeKV ${state.version}`;
  at("mode").hidden = false;
  at("mode").textContent = `mode ${state.mode}`;
  at("mode-description").textContent = `Mode ${state.mode}: ${state.mode_description}.`;
  at("pulse").className = `pulse${state.busy ? " busy" : ""}`;
  at("status").textContent = state.busy ? `computing${state.tokens_per_second ? `, ${speed(state.tokens_per_second)} tokens a second` : ""}` : "idle";
  const note = !state.served ? "EdgeKV is not attached to this model's context: stock llama.cpp serves it, and only its size can be shown."
    : state.mode === "off" ? "Mode off: stock llama.cpp computes attention. There are no tiers; the map shows only what is filled."
      : state.n_layers_served < state.n_layers ? `${state.n_layers_served} of ${state.n_layers} layers are served; the others run in stock llama.cpp and are not on the map.` : "";
  at("note").hidden = !note;
  at("note").textContent = note;
}

// whether all slots have the cells of one cache
const sharesCells = (state) => new Set(state.slots.map((slot) => slot.stream)).size < state.slots.length;

function showSlots(state) {
  at("slots-what").textContent = sharesCells(state) ? `in one cache of ${whole(state.n_slots * state.slots[0].n_ctx)} tokens for all` : "each with its own context";
  const found = state.slots.map((slot, i) => {
    const total = slot.pages_arena + slot.pages_home, hot = total ? slot.pages_arena / total : 0;
    const parts = [[slot.n_tokens * hot, "arena"], [slot.n_tokens * (1 - hot), "home"]];
    const note = [slot.n_tokens ? (state.pages.arena_slots ? `${percent(hot)} of its pages in the arena` : bytes(slot.bytes_home)) : "empty",
      slot.n_tokens_read_sparsely ? `${many(slot.n_tokens_read_sparsely, "token")} read sparsely` : ""].filter(Boolean).join("; ");
    return bar(`Slot ${i}`, `${whole(slot.n_tokens)} of ${whole(slot.n_ctx)} tokens`, parts, slot.n_ctx, note);
  });
  at("slots").replaceChildren(...(found.length ? found : [make("p", "none", `${many(state.n_slots, "slot")} of ${whole(state.n_ctx_slot)} tokens`)]));
}

function showTiers(state) {
  const most = Math.max(...state.tiers.map((tier) => tier.bytes));
  at("tiers").replaceChildren(...state.tiers.map((tier) => {
    const [name, tone, what] = TIERS[tier.tier];
    const used = tier.used_bytes === null ? bytes(tier.bytes) : `${bytes(tier.used_bytes)} used of ${bytes(tier.bytes)}`;
    const made = bar(name, used, [[tier.used_bytes ?? tier.bytes, tone]], tier.bytes, what);
    made.querySelector(".track").style.width = `${Math.max(3, 100 * tier.bytes / most)}%`;
    return made;
  }));
}

function showPages(state) {
  at("page-tokens").textContent = state.settings["page size"];
  const order = Object.keys(PLACES);
  const reasons = [...state.reasons].sort((a, b) => order.indexOf(a.where) - order.indexOf(b.where) || b.pages - a.pages);
  const rows = reasons.map(({ where, why, pages }) => {
    const [name, tone] = PLACES[where] ?? [where, "other"], mark = make("i");
    mark.style.background = `var(--${tone})`;
    return make("tr", "", make("td", "place", mark, name), make("td", "", why), make("td", "", whole(pages)));
  });
  const table = make("table", "", make("tbody", "", ...rows));
  at("pages").replaceChildren(rows.length ? table : make("p", "none", state.pages.bytes_each ? "Nothing decoded yet."
    : `Mode ${state.mode} has one tier here: all pages are at home.`));
}

function showMovement(state) {
  const { pages, selection } = state;
  const hasTiers = pages.arena_slots || pages.promoted;
  const pairs = !hasTiers ? [] : [["into the arena", many(pages.promoted, "page")], ["out, for others", many(pages.demoted, "page")],
    ["out, tokens changed", many(pages.invalidated, "page")], ["copied", bytes(pages.moved_bytes)],
    ["tokens waited", `${(1000 * pages.stall_seconds).toFixed(1)} ms`]];
  if (hasTiers && pages.failed) pairs.push(["copies failed", whole(pages.failed)]);
  if (selection.n_selections) {
    pairs.push(["a head reads", `${whole(selection.rows_per_head)} of ${whole(selection.visible_per_head)} tokens`]);
    if (selection.error !== null) pairs.push(["of these for certain", percent(selection.certain)]);
    if (selection.coverage !== null) pairs.push(["attention on what is read", `${percent(selection.coverage)} (estimated)`]);
  }
  if (state.kept) {
    pairs.push(["kept", `${whole(state.kept[0])} of ${whole(state.kept[1])} tokens`], ["dropped for good", many(pages.dropped_tokens, "token")]);
  }
  at("moved-what").textContent = MOVED[state.mode] ?? MOVED.other;
  if (state.worst_gap_seconds !== null) pairs.push(["longest pause in an answer", `${state.worst_gap_seconds.toFixed(2)} s`]);
  list(at("moved"), pairs.length ? pairs : [["nothing moves", "one tier"]]);
}

function showStore(state) {
  const { store, prompt_tokens: tokens } = state;
  if (!store) {
    at("store").replaceChildren(make("p", "none", "There is none in this server."));
    return;
  }
  const pairs = make("dl");
  list(pairs, [...(tokens ? [["prompt tokens found, in slots too", `${whole(tokens.found)} of ${whole(tokens.asked)}`]] : []),
    ["tokens loaded from it", whole(store.n_tokens_loaded)], ["blocks", whole(store.n_blocks)], ["in RAM", bytes(store.ram_bytes)],
    ["on disk", bytes(store.disk_bytes)]]);
  at("store").replaceChildren(pairs);
}

// ---- maps ----

function streamsOf(state) {
  const streams = new Map();
  state.slots.forEach((slot, i) => streams.set(slot.stream, [...(streams.get(slot.stream) ?? []), i]));
  return streams;
}

function layMaps(streams) {
  if (chosen === null) chosen = new Set([...streams.keys()].slice(0, MOST_MAPS));
  for (const [stream, slots] of streams) {
    if (!maps.has(stream)) maps.set(stream, new PageMap(slots.length > 1 ? `Slots ${slots[0]} to ${slots.at(-1)}, in one cache` : `Slot ${slots[0]}`));
  }
  const shown = [...streams.keys()].filter((stream) => chosen.has(stream)).map((stream) => maps.get(stream).element);
  if (shown.length !== at("maps").children.length || shown.some((element, i) => element !== at("maps").children[i])) at("maps").replaceChildren(...shown);
  at("choice").hidden = streams.size <= MOST_MAPS;
  if (streams.size > MOST_MAPS && at("choice").children.length !== streams.size) {
    at("choice").replaceChildren(...[...streams].map(([stream, slots]) => {
      const button = make("button", "", `Slot ${slots[0]}`);
      button.setAttribute("aria-pressed", chosen.has(stream));
      button.addEventListener("click", () => {
        if (!chosen.delete(stream)) chosen.add(stream);
        button.setAttribute("aria-pressed", chosen.has(stream));
      });
      return button;
    }));
  }
}

async function showMaps(state) {
  at("column-order").textContent = ORDERS[state.mode] ?? (sharesCells(state) ? ORDERS.shared : ORDERS.own);
  drawLegend(state.served && state.pages.arena_slots > 0, state.mode !== "off");
  if (!state.served) {
    at("maps").replaceChildren(make("p", "none", "There are no figures of this context."));
    return;
  }
  const streams = streamsOf(state);
  layMaps(streams);
  await Promise.all([...streams].filter(([stream]) => chosen.has(stream)).map(async ([stream, slots]) => {
    const map = await ask(`map/${slots[0]}`);
    const tokens = slots.reduce((sum, slot) => sum + state.slots[slot].n_tokens, 0);
    const pages = slots.reduce((sum, slot) => sum + state.slots[slot].pages_arena + state.slots[slot].pages_home, 0);
    const hot = slots.reduce((sum, slot) => sum + state.slots[slot].pages_arena, 0);
    const arena = pages && state.pages.arena_slots ? `, ${percent(hot / pages)} in the arena` : "";
    maps.get(stream).show(map, tokens ? `${many(tokens, "token")}${arena}` : "nothing decoded yet: send a prompt, and its pages appear here");
    if (map) at("column-tokens").textContent = `${whole(map.pages_per_column * map.page_tokens)} tokens`;
  }));
}

// ---- again and again ----

async function once() {
  const state = await ask("state");
  at("ask-key").hidden = true;
  at("main").hidden = false;
  showHeader(state);
  showSlots(state);
  showTiers(state);
  if (state.served) {
    showPages(state);
    showMovement(state);
    list(at("about"), Object.entries({ ...state.settings, "layers served": `${state.n_layers_served} of ${state.n_layers}`, "KV heads": whole(state.n_heads) }));
  }
  showStore(state);
  await showMaps(state);
  if (performance.now() - historyAt > HISTORY_MS) {
    historyAt = performance.now();
    drawCurves(await ask("history"), state);
  }
  return state.busy ? BUSY_MS : IDLE_MS;
}

async function run() {
  let wait = LOST_MS;
  try {
    if (!document.hidden) wait = await once();
  } catch (error) {
    if (error instanceof KeyNeeded) {
      at("key-wrong").hidden = !sessionStorage.getItem("edgekv-key");
      at("ask-key").hidden = false;
      at("main").hidden = true;
      at("status").textContent = "locked";
      return;
    }
    at("pulse").className = "pulse lost";
    at("status").textContent = error instanceof TypeError ? "the server does not answer" : error.message;
  }
  setTimeout(run, wait);
}

at("ask-key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("edgekv-key", at("key").value);
  run();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colours = palette();
  for (const map of maps.values()) map.draw();
});
run();
