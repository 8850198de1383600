"""The parts of a report about speed and memory: rows of `edgekv bench` and `edgekv bench serve`, the plan, and the machines."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from edgekv.bench.fields import FIGURES
from edgekv.common.enums import STOCK, STOCK_KERNELS
from edgekv.common.errors import ConfigError
from edgekv.common.units import size, tokens
from edgekv.lab.report import drawing
from edgekv.lab.report.pictures import LIMIT, STOCK_NAME, Lines, Panel, line_chart
from edgekv.lab.report.sections import Column, Join, Row, Section, lines_of, runs_of, where

WANTED = "rows of edgekv bench -o json"
DEPTH = "tokens in the context"

_COLUMNS: tuple[Any, ...] = (
    Column("test", "test", lambda test: test.replace(" ", "\u00a0")), Column("shown_mode", "mode"), Column("text", "text"), Column("types", "K/V"),
    Column("n_threads", "threads"), Column("avg_ts", "tokens/s", "{:,.2f}".format), Column("stddev_ts", "±", "{:,.2f}".format),
    *(figure for figure in FIGURES if figure.title), Column("fill", "context"), Column("note", "note"))


def answers_or_prompts(rows: Sequence[Row], plan: Row | None, prompts: bool) -> Section:
    """The speed of answers or of prompts, with the estimates of `plan`, if that is of the same model."""
    if prompts:
        section, figure, what = Section("reading", "Speed of prompts against depth"), "prompt", "tokens of a prompt, computed in batches"
    else:
        section, figure, what = Section("speed", "Speed of answers against depth"), "decode", "tokens generated one by one"
    rows = [row for row in rows if bool(row.get("n_prompt")) is prompts and bool(row.get("n_gen")) is not prompts]
    runs = runs_of(rows, "avg_ts")
    section.text = f"In tokens/s, {what}."
    for run in runs:
        estimates = _estimates(plan, figure, max(row["n_depth"] for row in run)) if plan and plan.get("model") == run[0].get("model") else {}
        if panels := _panels(run, "avg_ts", "tokens/s", estimates=estimates, limit=True):
            section.picture(line_chart(panels, DEPTH), f"{'Dotted: what the plan estimates. ' if estimates else ''}{where(run)}")
        unmeasured = [row for row in rows if row.get("avg_ts") is None and all(row.get(key) == run[0].get(key) for key in ("cpu", "date", "model"))]
        section.table([_line(row) for row in [*run, *unmeasured]], _COLUMNS, where(run))
        section.verdict = section.verdict or _gain(run)
        section.text += " " + _gain(run)
    if runs:
        section.text += (" Modes take turns in one run. Stock llama.cpp is the faster of its kernels, with flash attention and without. "
                         "The limit is the speed with an empty cache.")
    elif plan and (estimates := _estimates(plan, figure)):
        section.picture(line_chart([Panel("by estimate", "tokens/s", {}, "log", estimates)], DEPTH), f"What the plan estimates: {plan['model']}")
    else:
        section.missing = f"{WANTED}, or the plan"
    return section


def speed_picture(rows: Sequence[Row], path: Path) -> None:
    """Write the plot of ms per token against depth, of the first run with two depths, as SVG or PNG. Raises ConfigError if there is
    no such run, or if `path` cannot be written."""
    times = [{**row, "avg_ts": 1000 / row["avg_ts"], "limit_ratio": 1 / (row.get("limit_ratio") or float("inf"))}
             for row in rows if row.get("n_gen") and not row.get("n_prompt") and row.get("avg_ts")]
    for run in runs_of(times, "avg_ts"):
        if panels := _panels(run, "avg_ts", "ms per token", limit=True):
            drawing.save(line_chart(panels, DEPTH), path)
            return
    raise ConfigError("the plot needs rows of two depths; measure with `edgekv bench -p 0 -d 512,7680 -o json`")


def hits(rows: Sequence[Row]) -> Section:
    section = Section("hits", "Hit rates and what is read", (
        "Mode sparse reads what matters and a sample of the rest. A hit is a row that was in the arena, the fast memory for copies of "
        "hot pages; a miss is read from home, with the same result."))
    return _curves(section, rows, {"hit_rate": ("read from the arena", "hit rate, by row"),
                                   "attended_fraction": ("read of the context", "of the tokens a head sees")}, "percent from zero")


def memory(rows: Sequence[Row]) -> Section:
    section = Section("memory", "Memory against depth", (
        "The most that the measuring process had at one time, in any test: weights, work buffers, K and V, and what a mode keeps besides."))
    return _curves(section, [{**row, "test": "all tests"} for row in rows], {
        "ram_peak_mib": ("host memory", "MiB, at most"), "vram_peak_mib": ("GPU memory", "MiB, at most")}, "zero", max)


def _curves(section: Section, rows: Sequence[Row], figures: Mapping[str, tuple[str, str]], scale: str,
            join: Join = fmean) -> Section:
    for run in runs_of(rows, "avg_ts"):
        panels = [panel for figure, (title, y_label) in figures.items() for panel in _panels(run, figure, y_label, scale, join, title=f"{title}, ")]
        if panels:
            section.picture(line_chart(panels, DEPTH), where(run))
    section.missing = "" if section.pictures else f"{WANTED}, of two depths"
    return section


def _panels(
    run: Sequence[Row], figure: str, y_label: str, scale: str = "zero", join: Join = fmean, title: str = "",
    estimates: Lines | None = None, limit: bool = False,
) -> list[Panel]:
    """A panel for each test, number of threads, text and cache types with more than one depth. At each depth, stock is its faster kernel."""
    groups: dict[tuple, list[Row]] = {}
    for row in run:
        if row.get(figure) is not None and (row.get("kv_mode") not in STOCK_KERNELS or row.get("best_stock")):
            key = str(row.get("test")).partition(" @ ")[0], row.get("n_threads"), f"{row.get('type_k')}/{row.get('type_v')}", str(row.get("text"))
            groups.setdefault(key, []).append(row)
    differ = [len({key[i] for key in groups}) > 1 for i in (2, 3)]
    found = []
    for key, rows in groups.items():
        lines = _long(_named(rows), "line", "n_depth", figure, join)
        if limit and lines:
            bounds = [{"line": LIMIT, "n_depth": row["n_depth"], figure: row[figure] * row["limit_ratio"]} for row in rows if row.get("limit_ratio")]
            lines |= lines_of(bounds, "line", "n_depth", figure, median)
        if lines:
            of = [key[0], f"{key[1]} thread{'s' * (key[1] != 1)}", *(name for name, differs in zip(key[2:], differ) if differs)]
            found.append(Panel(title + ", ".join(of), y_label, lines, scale, {name: by for name, by in (estimates or {}).items() if name in lines}))
    return found


def _named(rows: Sequence[Row]) -> list[Row]:
    """The rows with the name of their line: a mode with several budgets at a depth has a line for each."""
    found = {(row.get("kv_mode"), row["n_depth"], row.get("kv_budget_mib")) for row in rows}
    several = {mode for (mode, _), n in Counter(key[:2] for key in found).items() if n > 1}
    return [{**row, "line": _mode(row) + (f", {row['kv_budget_mib']:g} MiB" if row.get("kv_mode") in several and row.get("kv_budget_mib") is not None else "")}
            for row in rows]


def _mode(row: Row) -> str:
    mode = str(row.get("kv_mode"))
    return STOCK_NAME if mode in STOCK_KERNELS else str(row.get("peer") or mode) if mode == "peer" else mode


def _line(row: Row) -> Row:
    mode = str(row.get("kv_mode")) if row.get("kv_mode") in STOCK_KERNELS else _mode(row)
    return {**row, "shown_mode": mode + (" (best stock)" if row.get("best_stock") else ""), "types": f"{row.get('type_k')}/{row.get('type_v')}"}


def _estimates(plan: Row, figure: str, deepest: int | None = None) -> Lines:
    rows = [{**of, "mode": STOCK_NAME if of["mode"] == STOCK else of["mode"]} for of in plan.get("speeds") or ()
            if deepest is None or of["depth"] <= 1.05 * deepest]
    return _long(rows, "mode", "depth", figure)


def _long(rows: Iterable[Row], name: str, x: str, y: str, join: Join = fmean) -> dict[str, dict[float, float]]:
    """`lines_of` more than one point."""
    return {of: by for of, by in lines_of(rows, name, x, y, join).items() if len(by) > 1}


def _gain(run: Sequence[Row]) -> str:
    """A sentence about our fastest mode at the deepest depth."""
    ours = [row for row in run if row.get("ratio_vs_stock") and row.get("kv_mode") not in (*STOCK_KERNELS, "peer") and row["n_depth"]]
    if not ours:
        return ""
    deepest = max(row["n_depth"] for row in ours)
    best = max((row for row in ours if row["n_depth"] == deepest), key=lambda row: row["avg_ts"])
    does = "decodes" if best.get("n_gen") else "reads prompts"
    times = f"{best['ratio_vs_stock']:.1f}x as fast as llama.cpp" if best["ratio_vs_stock"] >= 1.05 else "no faster than llama.cpp"
    return f"At {deepest:,} tokens {best['kv_mode']} {does} {times}: {best['avg_ts']:,.1f} tokens/s."


def clients(rows: Sequence[Row], columns: Iterable[Any]) -> Section:
    """Rows of `edgekv bench serve`: throughput and waiting times against the number of clients."""
    section = Section("serve", "Servers under several clients", (
        "Servers are asked in turns. Read: prompts that they have never seen; decode: the same prompts again, which they hold. Throughput "
        "is of all clients together, while all of them answer. The gap is the time between two tokens of an answer."))
    for run in runs_of(rows, "tokens_per_second"):
        panels = [Panel(title, y_label, lines) for part, figure, title, y_label in (
            ("decode", "tokens_per_second", "all answers together", "tokens/s"),
            ("read", "ttft_p50_s", "first token of a new prompt", "s, the median client"))
            if (lines := _long([row for row in run if row.get("part") == part], "server", "clients", figure))]
        if panels:
            section.picture(line_chart(panels, "clients at the same time"), where(run))
        order = sorted(run, key=lambda row: (row["clients"], row.get("n_prompt") or 0, str(row.get("part")) == "decode"))
        section.table(order, columns, f"medians of the turns; {where(run)}")
    section.missing = "" if section.tables else "rows of edgekv bench serve -o json"
    return section


def planned(plans: Sequence[Row]) -> Section:
    """Documents of `edgekv plan --json`."""
    section = Section("plan", "The plan", missing="" if plans else "the document of edgekv plan --json, or the option --model")
    for plan in plans:
        about = f"{plan.get('model')}: {tokens(plan['n_ctx'])} tokens, mode {plan.get('mode')}"
        sentence = str(plan.get("sentence") or "").rstrip(".")
        section.verdict = section.verdict or f"{sentence[:1].upper()}{sentence[1:]}."
        section.text += (f"{about}; {sentence}. Recommended is {plan.get('recommended')}: {plan.get('why')}. "
                         f"Flags: {' '.join(map(str, plan.get('flags') or ()))}. ")
        section.text += f"It does not fit: {plan['problem']} " if plan.get("problem") else ""
        totals = [{"name": "all", "place": place, "bytes": n} for place, n in (plan.get("total") or {}).items() if n]
        section.table([*plan["parts"], *totals], (
            Column("name", "what"), Column("place", "where"), Column("bytes", "bytes", size), Column("how", "how it is known"), Column("note", "note")), about)
    return section
