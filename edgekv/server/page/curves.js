
// ---- curves over the seconds of decoding; a pause leaves a gap

const SVG = "http://www.w3.org/2000/svg";
const WIDE = 300, HIGH = 90, PAUSE = 5;

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// the pieces of one line, as an SVG path
function path(times, values, top) {
  const n = Math.max(values.length, 30);
  const from = n - values.length;
  let text = "", drawing = false;
  values.forEach((value, i) => {
    if (value === null || (i && times[i] - times[i - 1] > PAUSE)) drawing = false;
    if (value === null) return;
    const x = (from + i) / (n - 1) * WIDE, y = HIGH - Math.min(1, value / top) * (HIGH - 4);
    text += `${drawing ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    // a lone point is seen as a dot
    if (!drawing && (values[i + 1] ?? null) === null) text += "l0.1 0";
    drawing = true;
  });
  return text;
}

// a round number above all values
function roof(values, least) {
  const most = Math.max(least, ...values.filter((value) => value !== null));
  const unit = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= most * 0.999);
}

// lines: [{name, values, tone, dashed, say, own}]; `own`: has a scale of its own. none: what to say where there are no values
function drawCurve(where, times, lines, least, none) {
  const known = lines.filter((line) => line.values.some((value) => value !== null));
  if (!known.length) {
    where.replaceChildren(make("p", "none", times.length ? none : "Nothing decoded yet."));
    return;
  }
  const shared = roof(known.filter((line) => !line.own).flatMap((line) => line.values), least);
  const picture = shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  for (const y of [4, (HIGH + 4) / 2, HIGH]) {
    picture.append(shape("line", { x1: 0, x2: WIDE, y1: y, y2: y, stroke: "var(--line)", "vector-effect": "non-scaling-stroke" }));
  }
  const now = make("div", "now");
  for (const line of known) {
    const top = line.own ? roof(line.values, line.own) : shared;
    picture.append(shape("path", {
      d: path(times, line.values, top), fill: "none", stroke: `var(--${line.tone})`, "stroke-width": 2, "stroke-linecap": "round",
      "stroke-linejoin": "round", "vector-effect": "non-scaling-stroke", ...(line.dashed ? { "stroke-dasharray": "5 4" } : {}) }));
    const mark = make("i");
    mark.style.color = `var(--${line.tone})`;
    const latest = line.values.findLast((value) => value !== null);
    now.append(make("div", line.dashed ? "dashed" : "", make("b", "", line.say(latest)), mark, `${line.name}; top line ${line.say(top)}`));
  }
  const seconds = Math.max(times.length, 30);
  where.replaceChildren(now, picture, make("div", "span", make("span", "", `${seconds} s of decoding ago`), make("span", "", "latest")));
}

function drawCurves(past, state) {
  const short = "So far everything was read: the context is short.";
  const hits = state.served && state.pages.arena_slots ? short : `Mode ${state.mode} has no arena here.`;
  const error = { off: "Stock llama.cpp reads everything.", exact: "Mode exact reads everything: there is no error to estimate.",
    evict: "Mode evict reads all kept rows; dropped rows are gone, and their share of the attention is unknown." }[state.mode] ?? short;
  const of = (name, values, tone, more) => ({ name, values, tone, say: percent, ...more });
  drawCurve(at("curve-speed"), past.at, [of("tokens a second", past.tokens_per_second, "good", { say: speed })], 1, "–");
  drawCurve(at("curve-hits"), past.at, [of("of rows", past.hit_rate, "arena"), of("of attention", past.hit_rate_mass, "home", { dashed: true })], 1, hits);
  drawCurve(at("curve-error"), past.at, [of("of the tokens read", past.read, "home"),
    of("of the attention covered (estimated)", past.coverage, "arena"), of("error (estimated)", past.error, "wrong", { dashed: true, own: 0.001 })], 0.01, error);
}
