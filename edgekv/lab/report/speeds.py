"""The parts of a report that show rows of `edgekv bench`: speed of answers and prompts, hits, memory, all against depth."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from edgekv.common.enums import STOCK, STOCK_KERNELS
from edgekv.common.errors import ConfigError
from edgekv.lab.report import charts, drawing
from edgekv.lab.report.charts import Line, Panel
from edgekv.lab.report.sections import (
    DEPTH,
    LIMIT,
    MODE_COLOURS,
    MODE_NAMES,
    UNKNOWN,
    Row,
    Section,
    Table,
    divergence,
    number,
    of_threads,
    percent,
    runs_of,
    where,
)

WANTED = "rows of edgekv bench -o json"

Points = dict[str, dict[int, float]]
"""Values by name of a line and by depth."""


def answers(rows: Sequence[Row], plan: Row | None) -> Section:
    """The section about the speed of decoding. It also shows the estimates of `plan`, if that is of the same model."""
    section = Section("speed", "Speed of answers against depth")
    rows = [row for row in rows if row.get("n_gen") and not row.get("n_prompt")]
    _speeds(section, rows, plan, "decode", "tokens generated one by one")
    return section


def prompts(rows: Sequence[Row], plan: Row | None) -> Section:
    """The section about the speed of prompts, made like `answers`."""
    section = Section("reading", "Speed of prompts against depth")
    _speeds(section, [row for row in rows if row.get("n_prompt") and not row.get("n_gen")], plan, "prompt", "tokens of a prompt, computed in batches")
    return section


def _speeds(section: Section, rows: Sequence[Row], plan: Row | None, figure: str, what: str) -> None:
    runs = runs_of(rows, "avg_ts")
    if not runs:
        section.missing = WANTED
        return
    section.text = (f"In tokens/s, {what}, in turns in one run. Stock llama.cpp is the faster of its kernels, with flash attention and without. "
                    "The limit is the speed with an empty cache.")
    for run in runs:
        section.text += _gain(run)
        estimates = _estimates(plan, run, figure)
        panels = [Panel(title, _lines(points, estimates), "tokens/s", "from zero") for title, points in _by_test(run, _speed_points).items()]
        if panels:
            dotted = "Dotted: what the plan estimates. " if any(line.estimate for panel in panels for line in panel.lines) else ""
            section.curves(panels, DEPTH, f"{dotted}{where(run)}", percent_x=False)
        section.tables.append(Table.without_empty(_COLUMNS, [_line(row) for row in [*run, *_not_measured(rows, run)]], f"Means. {where(run)}"))


def speed_picture(rows: Sequence[Row], path: Path) -> None:
    """Write the plot of ms per token against depth, of the first run with two depths, as SVG or PNG. Raises ConfigError if there is
    no such run, or if `path` cannot be written."""
    for run in runs_of([row for row in rows if row.get("n_gen") and not row.get("n_prompt")], "avg_ts"):
        points = {title: {name: {depth: 1000 / speed for depth, speed in by.items()} for name, by in lines.items()}
                  for title, lines in _by_test(run, _speed_points).items()}
        if points:
            panels = [Panel(title, _lines(lines), "ms per token", "from zero") for title, lines in points.items()]
            drawing.save(charts.line_chart(panels, DEPTH, percent_x=False), path)
            return
    raise ConfigError("the plot needs rows of two depths; measure with `edgekv bench -p 0 -d 512,7680 -o json`")


def _not_measured(rows: Sequence[Row], run: Sequence[Row]) -> list[Row]:
    """Rows of the run's machine and day that have no speed."""
    return [row for row in rows if row.get("avg_ts") is None and all(row.get(key) == run[0].get(key) for key in ("cpu", "date", "model"))]


def _by_test(run: Sequence[Row], points_of: Callable[[Sequence[Row]], Points]) -> dict[str, Points]:
    """Lines with more than one depth, by a title made of test, threads, text and cache types."""
    groups: dict[tuple, list[Row]] = {}
    for row in run:
        groups.setdefault((_test(row), row.get("n_threads"), row.get("type_k"), row.get("type_v"), row.get("text")), []).append(row)
    several, texts = len({key[2:4] for key in groups}) > 1, len({key[4] for key in groups}) > 1
    found = {}
    for key, rows in groups.items():
        lines = {name: points for name, points in points_of(rows).items() if len(points) > 1}
        if any(name != LIMIT for name in lines):
            found[", ".join((key[0], of_threads(key[1]), *((f"{key[2]}/{key[3]}",) if several else ()),
                             *((str(key[4]),) if texts else ())))] = lines
    return found


def _speed_points(rows: Sequence[Row]) -> Points:
    points = _points(rows, "avg_ts")
    limits: dict[int, list[float]] = {}
    for row in rows:
        if row.get("limit_ratio") and row.get("avg_ts"):
            limits.setdefault(row["n_depth"], []).append(row["avg_ts"] * row["limit_ratio"])
    return {**points, LIMIT: {depth: median(values) for depth, values in limits.items()}}


def _points(rows: Sequence[Row], figure: str) -> Points:
    """The points of each line. At each depth, stock is its faster kernel. A mode with several budgets at a depth has a line for each; a
    budget that grows with the context counts as one."""
    budgets: dict[tuple, set[Any]] = {}
    for row in rows:
        if row.get(figure) is not None:
            budgets.setdefault((row.get("kv_mode"), row.get("n_depth")), set()).add(row.get("kv_budget_mib"))
    several = {mode for (mode, _), values in budgets.items() if len(values) > 1}
    found: Points = {}
    for row in rows:
        if row.get(figure) is None or row.get("kv_mode") in STOCK_KERNELS and not row.get("best_stock"):
            continue
        name = _name(row)
        if row.get("kv_mode") in several:
            name += f", {row['kv_budget_mib']:g} MiB" if row.get("kv_budget_mib") is not None else ", no arena"
        found.setdefault(name, {})[row["n_depth"]] = row[figure]
    return found


def _name(row: Row) -> str:
    mode = str(row.get("kv_mode"))
    return STOCK if mode in STOCK_KERNELS else str(row.get("peer") or mode) if mode == "peer" else mode


def _lines(points: Mapping[str, Mapping[int, float]], estimates: Mapping[str, Mapping[int, float]] | None = None) -> list[Line]:
    of = {name: Line(MODE_NAMES.get(name, name), sorted(by), [by[depth] for depth in sorted(by)], ceiling=name == LIMIT,
                     colour=MODE_COLOURS.get(name)) for name, by in points.items()}
    last = max(depth for by in points.values() for depth in by)
    for name, by in (estimates or {}).items():
        depths = [depth for depth in sorted(by) if depth <= 1.05 * last]
        if name in of and len(depths) > 1:
            of[f"plan: {name}"] = Line(name, depths, [by[depth] for depth in depths], colour=MODE_COLOURS.get(name), estimate=True)
    return list(of.values())


def _estimates(plan: Row | None, run: Sequence[Row], figure: str) -> Points:
    """The plan's estimates, if the plan is of the run's model."""
    found: Points = {}
    if plan is not None and plan.get("model") == run[0].get("model"):
        for speed in plan.get("speeds") or ():
            if speed.get(figure):
                found.setdefault(speed["mode"], {})[speed["depth"]] = speed[figure]
    return found


def _gain(run: Sequence[Row]) -> str:
    """A sentence about our fastest mode at the deepest depth, with a space before it."""
    ours = [row for row in run if row.get("ratio_vs_stock") and row.get("kv_mode") not in (*STOCK_KERNELS, "peer") and row["n_depth"]]
    if not ours:
        return ""
    deepest = max(row["n_depth"] for row in ours)
    best = max((row for row in ours if row["n_depth"] == deepest), key=lambda row: row["avg_ts"])
    times = f"{best['ratio_vs_stock']:.1f} times the better of stock's kernels" if best["ratio_vs_stock"] >= 1.05 else "no more than stock"
    return f" With {deepest:,} tokens in the context {best['kv_mode']} comes to {best['avg_ts']:,.1f} tokens/s, {times}."


_COLUMNS = ("test", "depth", "mode", "text", "threads", "K/V", "arena MiB", "tokens/s", "±", "x stock", "x limit", "limit ms", "attention %",
            "ns/pair", "p50 tokens/s", "p5 tokens/s", "first token ms", "KLD", "KLD exact", "context", "note")


def _line(row: Row) -> tuple[str, ...]:
    best = " (best stock)" if row.get("best_stock") else ""
    mode = str(row.get("peer") or row.get("kv_mode")) if row.get("kv_mode") == "peer" else str(row.get("kv_mode"))
    return (_test(row), number(row.get("n_depth"), ",d"), mode + best, str(row.get("text") or UNKNOWN),
            number(row.get("n_threads"), "d"), f"{row.get('type_k')}/{row.get('type_v')}",
            number(row.get("kv_budget_mib"), ",.0f"), number(row.get("avg_ts"), ",.2f"), number(row.get("stddev_ts"), ",.2f"),
            number(row.get("ratio_vs_stock"), ".2f"), number(row.get("limit_ratio"), ".2f"), number(row.get("limit_ms"), ".2f"),
            percent(row.get("attention_fraction"), 0), number(row.get("pair_ns"), ".2f"), number(row.get("tg_ts_p50"), ",.2f"),
            number(row.get("tg_ts_p5"), ",.2f"), number(row.get("ttft_ms"), ",.0f"), divergence(row.get("kld")),
            divergence(row.get("kld_exact")), *(str(row.get(name) or UNKNOWN) for name in ("fill", "note")))


def _test(row: Row) -> str:
    return str(row.get("test")).partition(" @ ")[0]


def hits(rows: Sequence[Row]) -> Section:
    """The section about mode sparse's reads, and their share from the arena."""
    section = Section("hits", "Hit rates and what is read")
    for run in runs_of(rows, "hit_rate"):
        panels = [Panel(f"{what}, {title}", _lines(points), y_label, "percent from zero") for what, y_label, figure in (
            ("read from the arena", "hit rate, by row", "hit_rate"), ("read of the context", "of the tokens a head sees", "attended_fraction"))
            for title, points in _by_test(run, partial(_points, figure=figure)).items()]
        if panels:
            section.curves(panels, DEPTH, where(run), percent_x=False)
        section.tables.append(Table.without_empty(_HIT_COLUMNS, [_hit_line(row) for row in run], f"Of a token, mean. {where(run)}"))
    if not section.tables:
        section.missing = f"{WANTED}, with mode sparse"
    section.text = ("Mode sparse reads what matters and a sample of the rest. A hit is a row that was in the arena, the fast memory for copies of "
                    "hot pages; a miss is read from home, with the same result. Coverage is the share of the attention on what was read.")
    return section


_HIT_COLUMNS = ("depth", "mode", "threads", "arena MiB", "hits %", "by mass %", "rows a head", "read %", "coverage %", "error %", "moved KiB a token",
                "waited ms")


def _hit_line(row: Row) -> tuple[str, ...]:
    moved = row.get("bytes_moved")
    return (number(row.get("n_depth"), ",d"), str(row.get("kv_mode")), number(row.get("n_threads"), "d"), number(row.get("kv_budget_mib"), ",.0f"),
            percent(row.get("hit_rate")), percent(row.get("hit_rate_mass")), number(row.get("rows_per_head"), ",.0f"), percent(row.get("attended_fraction")),
            percent(row.get("coverage")), percent(row.get("error")), number(None if moved is None else moved / 1024, ",.1f"),
            number(row.get("stall_ms"), ",.1f"))


def memory(rows: Sequence[Row]) -> Section:
    """The section about peak memory by depth."""
    section = Section("memory", "Memory against depth")
    known = [row for row in rows if row.get("ram_peak_mib") is not None or row.get("vram_peak_mib") is not None]
    runs = runs_of(known, "avg_ts")
    if not runs:
        section.missing = WANTED
        return section
    section.text = "The most that the measuring process had at one time, in MiB: weights, work buffers, K and V, and what a mode keeps besides."
    for run in runs:
        panels = [Panel(f"{place}, {title}", _lines(points), "MiB, at most", "from zero") for place, figure in _PLACES.items()
                  for title, points in _by_test(_most(run, figure), partial(_points, figure=figure)).items()]
        if panels:
            section.curves(panels, DEPTH, where(run), percent_x=False)
        shown = _most(run, "ram_peak_mib") or _most(run, "vram_peak_mib")
        section.tables.append(Table.without_empty(("depth", "mode", "threads", "context", *_PLACES), [
            (number(row["n_depth"], ",d"), MODE_NAMES.get(_name(row), _name(row)), number(row.get("n_threads"), "d"), number(row.get("n_ctx"), ",d"),
             *(number(row.get(figure), ",.0f") for figure in _PLACES.values())) for row in shown], f"MiB, at most. {where(run)}"))
    return section


def _most(run: Sequence[Row], figure: str) -> list[Row]:
    """For each depth and mode, the row of the test with the highest figure; stock is its faster kernel."""
    found: dict[tuple, Row] = {}
    for row in run:
        if row.get(figure) is not None and (row.get("kv_mode") not in STOCK_KERNELS or row.get("best_stock")):
            key = (_name(row), *(row.get(name) for name in ("n_depth", "kv_budget_mib", "n_threads", "type_k", "type_v")))
            if key not in found or row[figure] > found[key][figure]:
                found[key] = {**row, "test": "all tests"}
    return sorted(found.values(), key=lambda row: row["n_depth"])


_PLACES = {"host memory": "ram_peak_mib", "GPU memory": "vram_peak_mib"}
