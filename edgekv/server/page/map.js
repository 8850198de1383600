"use strict";

// the map: a field is a column of a line, a byte: where its pages live * 16 + how much attention it got (0 to 15)

const HOME = 1, MOVING = 3, SOME = 4, ALL = 15;
const LEVELS = 15, FAINTEST = 0.03, BRIGHTEST = 30;  // in even shares
const MARGIN = { left: 30, top: 18, bottom: 18 };

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const mix = (a, b, share) => a.map((from, i) => from + (b[i] - from) * share);

// the colour of each of the 256 values, by the theme of now
function palette() {
  const [home, homeStrong, arena, arenaStrong, empty, moving] = ["home-faint", "home-strong", "arena-faint", "arena-strong", "empty", "moving"]
    .map((name) => [1, 3, 5].map((i) => parseInt(colour(name).slice(i, i + 2), 16)));
  return Array.from({ length: 256 }, (_, value) => {
    const place = value >> 4, share = place < SOME ? 0 : (place - SOME + 1) / (ALL - SOME + 1);
    if (place < HOME || place === MOVING) return place ? moving : empty;
    return mix(mix(home, arena, share), mix(homeStrong, arenaStrong, share), (value & 15) / LEVELS);
  });
}

function attention(level) {
  const times = FAINTEST * (BRIGHTEST / FAINTEST) ** ((level - 0.5) / LEVELS);
  return level ? `about ${few(times)} times an even share of its attention` : "hardly any attention";
}

class PageMap {
  constructor() {
    this.caption = make("figcaption", "");
    this.canvas = Object.assign(make("canvas", ""), { tabIndex: 0, role: "img" });
    this.element = make("figure", "", this.caption, this.canvas);
    this.at = [0, -1];  // [line, column] under the mouse, or chosen by keys
    this.canvas.addEventListener("pointermove", (event) => this.say(
      Math.floor((event.offsetY - MARGIN.top) / this.height * this.map.layers.length),
      Math.floor((event.offsetX - MARGIN.left) / this.width * this.map.n_columns)));
    this.canvas.addEventListener("keydown", (event) => {
      const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (by) this.say(this.at[0] + by[0], this.at[1] + by[1]);
      if (by) event.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  show(map, caption) {
    this.caption.textContent = this.canvas.ariaLabel = caption;
    this.map = map;
    map.values = Uint8Array.from(atob(map.fields), (c) => c.charCodeAt(0));
    this.draw();
  }

  draw() {
    const { map } = this, n = map.layers.length, ratio = window.devicePixelRatio || 1, colours = palette();
    this.width = this.element.clientWidth - MARGIN.left;
    this.height = Math.max(120, Math.round(n * Math.max(1, Math.min(4, 340 / n))));
    if (!n || this.width <= 0) return;
    const full = this.height + MARGIN.top + MARGIN.bottom;
    Object.assign(this.canvas, { width: Math.round(this.element.clientWidth * ratio), height: Math.round(full * ratio) }).style.height = `${full}px`;
    const picture = new ImageData(map.n_columns, n), small = new OffscreenCanvas(map.n_columns, n), pen = this.canvas.getContext("2d");
    map.values.forEach((value, i) => picture.data.set([...colours[value], 255], 4 * i));
    small.getContext("2d").putImageData(picture, 0, 0);
    pen.scale(ratio, ratio);
    pen.imageSmoothingEnabled = map.n_columns > this.width * ratio;
    pen.drawImage(small, MARGIN.left, MARGIN.top, this.width, this.height);
    Object.assign(pen, { font: "12px system-ui, sans-serif", fillStyle: colour("muted"), textAlign: "right" });
    const step = Math.ceil(28 * n / this.height);  // lines between two numbers of layers
    for (let i = 0, next = 0; i < n; i += 1) {
      if (map.layers[i] === map.layers[i - 1] || i < next) continue;
      pen.fillText(map.layers[i], MARGIN.left - 6, MARGIN.top + (i + 0.5) * this.height / n + 5);
      next = i + step;
    }
    const x = (column) => MARGIN.left + column / map.n_columns * this.width, marks = this.width > 500 ? 4 : 2;
    for (let i = 0; i <= marks; i += 1) {
      pen.textAlign = ["left", "center", "right"][Math.floor(i / marks) + (i > 0)];
      pen.fillText(whole(i * map.n_columns * map.pages_per_column * map.page_tokens / marks), x(i * map.n_columns / marks), full - 4);
    }
    Object.assign(pen, { fillStyle: colour("text"), textAlign: "left" });
    map.spans.forEach(([column, slots], i) => {  // a line where tokens of other slots begin, and whose they are
      const room = x(map.spans[i + 1]?.[0] ?? map.texts.length) - x(column), name = slotNames(slots);
      if (!slots.length || room < 4 || map.spans.length < 2) return;
      if (column) pen.fillRect(Math.round(x(column)) - 1, MARGIN.top - 14, 2, this.height + 14);
      if (pen.measureText(name).width + 8 < room) pen.fillText(name, x(column) + 4, MARGIN.top - 5);
    });
  }

  async say(y, column) {
    const { map } = this, layer = map.layers[y], value = map.values[y * map.n_columns + column], place = value >> 4;
    if (layer === undefined || column < 0 || column >= map.n_columns) return;
    const [slot, first, n] = map.texts[column] ?? [-1, 0, 0], head = (y - map.layers.indexOf(layer)) * map.heads_per_line;
    const heads = map.heads_per_line > 1 ? `heads ${head} to ${head + map.heads_per_line - 1}` : `head ${head}`;
    const where = place === MOVING ? "on the way into the arena, " : place < SOME ? "" : place === ALL ? "in the arena, " : "partly in the arena, ";
    const said = slot < 0 ? "no token is here" : `slot ${slot}, tokens ${whole(first)} to ${whole(first + n - 1)}, layer ${layer}, ${heads}: `
      + `${where}${attention(value & 15)}`;
    this.at = [y, column];
    at("tip").replaceChildren(said);
    const text = slot < 0 ? "" : await textOf(`edgekv/cache?slot=${slot}&first=${first}&n=${n}`);
    if (text && at("tip").textContent === said) at("tip").append(make("br", ""), make("q", "", text));
  }
}

const texts = new Map();  // the newest, by the paths of their tokens

function textOf(path) {
  if (!texts.has(path)) {
    texts.set(path, ask(path).then(({ tokens }) => (tokens.length ? ask("detokenize", { tokens }) : {})).then(({ content }) => content, () => ""));
    setTimeout(() => texts.delete(path), 3000);  // another prompt may be there by then
  }
  return texts.get(path);
}
