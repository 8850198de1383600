"""The parts of a report that show rows of other commands: times, the ladder, quality over the budget, retention by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgekv.bench.modes import FULL, STOCK, STOCK_KERNELS
from edgekv.bench.retention import Retention
from edgekv.config import Attend, KvOptions
from edgekv.errors import ConfigError
from edgekv.report import charts
from edgekv.report.charts import Interval, Line, Panel
from edgekv.report.drawing import BLUE, GREEN, ORANGE, PURPLE, RED
from edgekv.report.sections import Row, Section, number, percent, points, where
from edgekv.report.study import MAP_BUDGET

LINES = 5
"""Lines that have a name where none of _TOLD is there; the others are grey."""

_LADDER_COLUMNS = ("budget %", "rung", "published", "hits %", "gain", "by mass %", "gain", "coverage %", "fetched", "sees", "KLD",
                   "same top %", "x exact ms", "overhead %")


def decode_time(rows: Sequence[Row]) -> Section:
    """Of rows of `edgekv bench kv`: each run stands by itself, since times of two runs do not compare."""
    section = Section("decode", "Time of a decode step")
    runs: dict[tuple, list[Row]] = {}
    for row in rows:
        if row.get("decode_ms_p50") is not None:
            runs.setdefault(tuple(row.get(key) for key in _RUN_KEYS), []).append(row)
    if not runs:
        section.missing = "rows of edgekv bench kv -o json"
        return section
    section.text = ("Medians in ms per token, measured in turns. Stock llama.cpp is measured with flash attention and without; off is the "
                    "faster of the two, and what every ratio is to. The limit is a step with an empty cache, on as many threads: what the "
                    "weights alone cost.")
    missing = dict.fromkeys(f"{row.get('mode')}: {row['note']}" for row in rows if row.get("mode") in STOCK_KERNELS and row.get("note"))
    if missing:
        section.text += f" Not measured: {'; '.join(missing)}."
    for run in runs.values():
        section.table(_TIME_COLUMNS, [_time_line(row) for row in run], where(run))
    return section


_RUN_KEYS = ("cpu", "date", "model", "version", "isa")

_TIME_COLUMNS = ("mode", "text", "depth", "threads", "K/V", "ms/token", "x stock", "best stock", "limit ms", "x limit", "KLD exact")


def _time_line(row: Row) -> tuple[str, ...]:
    return (str(row.get("mode")), str(row.get("text")), number(row.get("depth"), ",d"), number(row.get("threads"), "d"),
            f"{row.get('type_k')}/{row.get('type_v')}", number(row["decode_ms_p50"], ".2f"), number(row.get("ratio_vs_stock"), ".2f"),
            str(row.get("stock") or "–"), number(row.get("limit_ms_p50"), ".2f"), number(row.get("ratio_vs_limit"), ".2f"),
            number(row.get("kld_exact"), ".1e"))


def ladder(rows: Sequence[Row]) -> Section:
    """Of rows of `edgekv bench ladder`, as means over their texts."""
    section = Section("ladder", "The ladder")
    shown = _means(rows)
    if not shown:
        section.missing = "ladder.json (edgekv bench ladder --save DIR)"
        return section
    by_budget = {budget: [row for row in shown if row["budget"] == budget] for budget in sorted({row["budget"] for row in shown})}
    panels = {f"{100 * budget:g} % of the pages":
              [charts.Step(row["rung"], row["hit_rate"], row.get("published")) for row in found]
              for budget, found in by_budget.items()}
    section.picture(charts.ladder_chart(panels, "hit rate, by access"),
                    "Share of the 8 pages each head wants most that were in fast memory.")
    section.text = _ladder_text(by_budget, rows)
    section.table(_LADDER_COLUMNS, [_ladder_line(row) for found in by_budget.values() for row in found],
                  "Gains are to the rung without the idea, in points. Live, where a KV mode does the same: KLD and same top "
                  "token against full attention, and a step's time over that of full attention.")
    return section


def _means(rows: Sequence[Row]) -> list[Row]:
    """Over the texts, for each budget and rung; of several runs on a text the last counts. A figure that a text lacks is None."""
    last = {(row["budget"], row["rung"], row.get("text")): row for row in rows if row.get("text") != "mean"}
    groups: dict[tuple, list[Row]] = {}
    for (budget, rung, _), row in last.items():
        groups.setdefault((budget, rung), []).append(row)

    def mean(key: str, group: Sequence[Row]) -> float | None:
        values = [row.get(key) for row in group]
        return None if None in values else float(np.mean(values))

    return [{**group[0], **{key: mean(key, group) for key in _LADDER_FIGURES}} for group in groups.values()]


_LADDER_FIGURES = ("hit_rate", "gain", "hit_rate_mass", "gain_mass", "coverage", "fetched", "kld", "same_top", "ms_ratio",
                   "overhead")


def _ladder_line(row: Row) -> tuple[str, ...]:
    return (f"{100 * row['budget']:g}", str(row["rung"]), percent(row.get("published"), 0), percent(row["hit_rate"]),
            points(row["gain"]), percent(row["hit_rate_mass"]), points(row["gain_mass"]), percent(row["coverage"]),
            number(row["fetched"], ".2f"), str(row.get("observe")), number(row["kld"], ".1e"), percent(row["same_top"]),
            number(row["ms_ratio"], ".2f"), percent(row["overhead"]))


def _ladder_text(by_budget: Mapping[float, Sequence[Row]], rows: Sequence[Row]) -> str:
    budget = min(by_budget, key=lambda share: abs(share - MAP_BUDGET))
    found = {row["rung"]: row for row in by_budget[budget]}
    said = [f"{name} {percent(row['hit_rate'])} % (published {percent(row['published'], 0)})" for name, row in found.items()
            if row.get("published") is not None]
    said += [f"{name} {percent(found[name]['hit_rate'])} %" for name in ("+ one pool", "oracle, one pool") if name in found]
    means = ", means over the texts" if len({row.get("text") for row in rows} - {"mean"}) > 1 else ""
    return (f"At {100 * budget:g} % of the pages the hit rate by access is: {', '.join(said)}{means}. Simulated on recorded "
            f"attention with honest observation unless a rung says otherwise: {where(rows)}.")


@dataclass(frozen=True)
class _Likeness:
    """How near a configuration comes to full attention on one text at one page budget."""

    name: str
    budget: float
    kld: float
    same_top: float


def _likeness(row: Row) -> _Likeness | None:
    """None for a mean over texts, which are averaged here, and for rows without live figures or a page budget."""
    if row.get("text") in ("mean", "all"):
        return None
    if row.get("kind") == "ladder":
        found = (row["rung"], row["budget"], row.get("kld"), row.get("same_top"))
    elif row.get("kind") == "text" and row.get("mode") not in _REFERENCES:
        found = (*_mode(str(row.get("mode"))), row.get("kld_exact"), row.get("same_top_exact"))
    else:
        return None
    return None if None in found else _Likeness(*found)


_REFERENCES = (STOCK, *STOCK_KERNELS, FULL, "exact-unobserved")
"""Bench modes that attend everything."""


def _mode(mode: str) -> tuple[str, float | None]:
    """Name and page budget of a bench mode such as sparse:attend=10%,blend=0.3; None for a budget in tokens or none."""
    base, _, text = mode.partition(":")
    changes = dict(change.partition("=")[::2] for change in text.split(",") if change)
    asked = changes.pop("attend", KvOptions.attend)
    left = ",".join(f"{key}={value}" for key, value in changes.items())
    try:
        attend = Attend.parse(asked)
    except ConfigError:
        return mode, None
    return f"{base}:{left}" if left else base, None if attend.tokens else attend.share


def quality(ladder_rows: Sequence[Row], rows: Sequence[Row]) -> Section:
    """Of the live rungs of a ladder, and of texts of `edgekv quality`."""
    section = Section("quality", "Quality over the budget")
    found = [(row, likeness) for row in (*ladder_rows, *rows) if (likeness := _likeness(row)) is not None]
    if not found:
        section.missing = "live rungs in ladder.json (edgekv bench ladder --save DIR), or texts of edgekv quality -o json"
        return section
    values: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for _, one in found:
        values.setdefault(one.name, {}).setdefault(one.budget, []).append((one.kld, one.same_top))
    means = {name: {budget: np.mean(pairs, axis=0) for budget, pairs in sorted(by.items())} for name, by in values.items()}
    budgets = sorted({budget for by in means.values() for budget in by})
    budget = min(budgets, key=lambda share: abs(share - MAP_BUDGET))
    order = sorted(means, key=lambda name: means[name].get(budget, (np.inf,))[0])
    named = [name for name in _TOLD if name in means] or order[:LINES]

    def lines(figure: int) -> list[Line]:
        return [Line(name, list(means[name]), [pair[figure] for pair in means[name].values()], faint=name not in named,
                     colour=_TOLD.get(name)) for name in order]

    stock = [row["kld_exact"] for row in rows if row.get("kind") == "text" and row.get("mode") == "off" and row.get("kld_exact")]
    target = (float(np.mean(stock)), "stock llama.cpp") if stock else None
    section.picture(charts.line_chart([Panel("divergence from full attention", lines(0), "mean KLD, nats", "log", target),
                                       Panel("same most likely token", lines(1), "of all positions")], "pages attended",
                                      height=4.2),
                    "Means over the texts; grey lines stand in the table.")
    measured = [name for name in order if budget in means[name]]
    best, worst = measured[0], measured[-1]
    live = [{**row, "n_steps": row.get("n_live_steps", row.get("n_steps"))} for row, _ in found]
    kld, same_top = means[best][budget]
    section.text = (f"At {100 * budget:g} % of the pages {best} diverges least from full attention (KLD {kld:.1e}, same top "
                    f"token {percent(same_top)} %) and {worst} most ({means[worst][budget][0]:.1e}). Measured live, "
                    f"teacher-forced: {where(live)}.")
    section.table(("configuration", *(f"KLD, {100 * b:g} %" for b in budgets), *(f"same top, {100 * b:g} %" for b in budgets)), [
        (name, *(number(means[name][b][0], ".1e") if b in means[name] else "–" for b in budgets),
         *(percent(means[name][b][1]) if b in means[name] else "–" for b in budgets)) for name in order])
    return section


_TOLD = {"+ one pool": BLUE, "sparse": BLUE, "+ recent pins": RED, "ema": RED, "streaming": GREEN, "lru": ORANGE,
         "+ sketch feed": PURPLE, "sparse-box": PURPLE}
"""Rungs and bench modes that have a colour and a name, where they are there."""


def retention(rows: Sequence[Row]) -> Section:
    """Of tasks of `edgekv quality`."""
    section = Section("retention", "Retention by task")
    asked = _together([row for row in rows if row.get("kind") == "task" and row.get("mode") != "exact" and row.get("length") is None])
    if not asked:
        section.missing = "tasks of edgekv quality -o json"
        return section
    tasks: dict[str, dict[str, Interval]] = {}
    for row in asked:
        share = None if row.get("says_nothing") else row.get("retention")
        interval = Interval(share, row.get("retention_low"), row.get("retention_high"))
        tasks.setdefault(str(row.get("task")), {})[str(row.get("mode"))] = interval
    shown = {task: found for task, found in tasks.items() if any(one.value is not None for one in found.values())}
    if shown:
        section.picture(charts.retention_chart(shown), "A dot with its 95 % interval for each mode.")
    silent = [task for task in tasks if task not in shown]
    cannot = f" The model itself cannot do {', '.join(silent)}: that says nothing about the cache." if silent else ""
    section.text = f"Right answers of those that full attention gives, with 95 % intervals.{cannot} Asked live: {where(asked)}."
    section.table(("task", "mode", "asked", "full attention", "kept", "retention %", "95 % interval"), [
        (str(row.get("task")), str(row.get("mode")), number(row.get("asked"), "d"), number(row.get("full_found"), "d"),
         number(row.get("kept"), "d"), percent(row.get("retention"), 0),
         f"{percent(row.get('retention_low'), 0)} to {percent(row.get('retention_high'), 0)}") for row in asked])
    return section


def _together(rows: Sequence[Row]) -> list[Row]:
    """One row for each task and mode: several runs, of other lengths or seeds, add up."""
    counts: dict[tuple[str, str], Retention] = {}
    merged: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = str(row.get("task")), str(row.get("mode"))
        one = Retention(*(int(row.get(name) or 0) for name in ("asked", "full_found", "found", "kept")))
        counts[key] = counts.get(key, Retention()) + one
        merged[key] = {**merged.get(key, row), **counts[key].row()}
    return list(merged.values())
