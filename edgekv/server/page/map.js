
// ---- the map: a field is a column of a line, a byte: where its pages live * 16 + how much attention it got (0 to 15)

const EMPTY = 0, HOME = 1, FILLING = 2, MOVING = 3, SOME = 4, ALL = 15;
const LEVELS = 15, FAINTEST = 0.03, BRIGHTEST = 30;  // in even shares
const MARGIN = { left: 30, bottom: 17 };

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const mix = (a, b, share) => a.map((from, i) => from + (b[i] - from) * share);

// the colour of each of the 256 values, by the theme of now
function palette() {
  const [home, homeStrong, arena, arenaStrong] = ["home-faint", "home-strong", "arena-faint", "arena-strong"].map((name) => rgb(colour(name)));
  const plain = { [EMPTY]: rgb(colour("empty")), [FILLING]: rgb(colour("filling")), [MOVING]: rgb(colour("moving")) };
  return Array.from({ length: 256 }, (_, value) => {
    const place = value >> 4, level = (value & 15) / LEVELS;
    if (place in plain) return plain[place];
    const share = place <= HOME ? 0 : (place - SOME + 1) / (ALL - SOME + 1);
    return mix(mix(home, arena, share), mix(homeStrong, arenaStrong, share), level);
  });
}

let colours = palette();

function attention(level) {
  if (level === 0) return "hardly any attention";
  const times = FAINTEST * (BRIGHTEST / FAINTEST) ** ((level - 0.5) / LEVELS);
  return `about ${times < 3 ? times.toFixed(1) : whole(times)} times an even share of this head's attention`;
}

function placeText(place) {
  if (place === EMPTY) return "empty";
  if (place === HOME) return "only at home";
  if (place === FILLING) return "being filled";
  if (place === MOVING) return "on the way into the arena";
  return place === ALL ? "in the arena" : "some of it in the arena";
}

class PageMap {
  constructor(title) {
    this.title = make("b", "", title);
    this.note = make("span", "");
    this.canvas = make("canvas");
    this.canvas.setAttribute("role", "img");
    this.element = make("figure", "map", make("figcaption", "", this.title, this.note), this.canvas);
    this.map = null;
    this.canvas.addEventListener("pointermove", (event) => this.say(event));
    this.canvas.addEventListener("pointerleave", () => { at("tip").textContent = "\u00a0"; });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  show(map, note) {
    this.note.textContent = note;
    this.canvas.setAttribute("aria-label", `${this.title.textContent}: ${note}`);
    if (map) {
      const text = atob(map.fields);
      map.values = Uint8Array.from(text, (c) => c.charCodeAt(0));
      this.map = map;
    }
    this.draw();
  }

  draw() {
    const map = this.map, width = this.element.clientWidth;
    if (!map || !width || !map.layers.length) return;
    const ratio = window.devicePixelRatio || 1, n = map.layers.length;
    const step = Math.max(1, Math.min(4, 420 / n)), height = Math.max(120, Math.round(n * step));
    Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round((height + MARGIN.bottom) * ratio) });
    this.canvas.style.height = `${height + MARGIN.bottom}px`;
    const picture = new ImageData(map.n_columns, n);
    map.values.forEach((value, i) => picture.data.set([...colours[value], 255], 4 * i));
    const small = new OffscreenCanvas(map.n_columns, n);
    small.getContext("2d").putImageData(picture, 0, 0);
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.box = { left: MARGIN.left, width: width - MARGIN.left, height };
    pen.imageSmoothingEnabled = map.n_columns > this.box.width * ratio;
    pen.drawImage(small, this.box.left, 0, this.box.width, height);
    this.axes(pen, map, n, height);
  }

  axes(pen, map, n, height) {
    pen.fillStyle = colour("muted");
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    let free = -1;
    map.layers.forEach((layer, i) => {
      const y = (i + 0.5) * height / n;
      if ((i === 0 || layer !== map.layers[i - 1]) && y >= free) {
        pen.fillText(layer, MARGIN.left - 6, Math.max(y, 6));
        free = y + 26;
      }
    });
    const tokens = map.n_columns * map.pages_per_column * map.page_tokens;
    pen.textBaseline = "bottom";
    const marks = this.box.width > 420 ? 4 : 2;
    for (let i = 0; i <= marks; i += 1) {
      pen.textAlign = i === 0 ? "left" : i === marks ? "right" : "center";
      const text = i === marks ? `${whole(tokens)} tokens` : whole(i * tokens / marks);
      pen.fillText(text, MARGIN.left + i * this.box.width / marks, height + MARGIN.bottom);
    }
  }

  say(event) {
    const map = this.map;
    if (!map || !this.box) return;
    const column = Math.floor((event.offsetX - this.box.left) / this.box.width * map.n_columns);
    const line = Math.floor(event.offsetY / this.box.height * map.layers.length);
    if (column < 0 || column >= map.n_columns || line < 0 || line >= map.layers.length) return;
    const layer = map.layers[line], head = (line - map.layers.indexOf(layer)) * map.heads_per_line;
    const heads = map.heads_per_line === 1 ? `head ${head}` : `heads ${head} to ${head + map.heads_per_line - 1}`;
    const width = map.pages_per_column * map.page_tokens, value = map.values[line * map.n_columns + column];
    const where = `layer ${layer}, ${heads}, tokens ${whole(column * width)} to ${whole((column + 1) * width - 1)}`;
    const place = value >> 4;
    at("tip").textContent = `${where}: ${placeText(place)}${place ? `, ${attention(value & 15)}` : ""}`;
  }
}

// what the colours mean; without tiers there is no arena, and stock llama.cpp does not report attention
function drawLegend(hasArena, hasAttention) {
  const ramp = (place) => {
    const made = make("canvas");
    Object.assign(made, { width: 64, height: 1 });
    const pen = made.getContext("2d");
    for (let x = 0; x < 64; x += 1) {
      pen.fillStyle = `rgb(${colours[place * 16 + Math.round(x * LEVELS / 63)].join(" ")})`;
      pen.fillRect(x, 0, 1, 1);
    }
    return made;
  };
  const plain = (name) => { const made = make("i"); made.style.background = `var(--${name})`; return made; };
  const entries = hasArena
    ? [[ramp(ALL), "in the arena (fast copy)"], [ramp(HOME), "only at home (host memory)"], [plain("filling"), "being filled"],
      [plain("moving"), "moving"]]
    : [[hasAttention ? ramp(HOME) : plain("home-faint"), "in the KV cache"], ...(hasAttention ? [[plain("filling"), "being filled"]] : [])];
  at("legend").replaceChildren(...entries.map(([mark, text]) => make("span", "", mark, text)),
    ...(hasAttention ? [make("span", "", "little attention → much")] : []));
}
