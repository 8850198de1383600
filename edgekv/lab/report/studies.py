"""The parts of a report that show rows of other commands: the ladder, quality over the budget, retention by task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgekv.common.enums import FULL, STOCK, STOCK_KERNELS
from edgekv.lab.report import charts, maps
from edgekv.lab.report.charts import Interval, Line, Panel
from edgekv.lab.report.drawing import BLUE, GREEN, ORANGE, PURPLE, RED
from edgekv.lab.report.sections import MODE_COLOURS, Row, Section, divergence, number, percent, points, where
from edgekv.lab.report.study import MAP_BUDGET
from edgekv.lab.results.retention import Retention

LINES = 5
"""Number of named lines if none is in _TOLD; the others are grey."""

_LADDER_COLUMNS = ("budget %", "rung", "sees", "published", "hits %", "gain", "by mass %", "gain", "worst %", "fetched", "KLD",
                   "same top %", "x exact ms", "overhead %")


def ladder(rows: Sequence[Row]) -> Section:
    """The section of rows of `edgekv lab ladder`, as means over texts."""
    section = Section("ladder", "The ladder")
    shown = _means(rows)
    if not shown:
        section.missing = "ladder.json (edgekv lab ladder --save DIR)"
        return section
    budgets, seen = sorted({row["budget"] for row in shown}), list(dict.fromkeys(row["observe"] for row in shown))
    of = {(budget, observe): [row for row in shown if row["budget"] == budget and row["observe"] == observe]
          for budget in budgets for observe in seen}
    panels = {f"{100 * budget:g} % of the pages hot, {observe}": [charts.LadderRung(row["rung"], row["hit_rate"], row.get("published"))
                                                               for row in of[budget, observe]]
              for budget in budgets for observe in seen if observe != _AHEAD and of[budget, observe]}
    section.picture(charts.ladder_chart(panels, "hit rate, by access"), "Share of the rows that mode sparse reads which were in hot pages.")
    section.text = _ladder_text(of, rows)
    section.table(_LADDER_COLUMNS, [_ladder_line(row) for found in of.values() for row in found],
                  "Gains are to the rung without the idea, in points. Live, where a KV mode without sketches attends what the rung "
                  "chooses: KLD and same top token against full attention, and a step's time over that of full attention.")
    return section


_AHEAD = "ahead"
"""The observation of the oracle: one ceiling for all observations."""


def _means(rows: Sequence[Row]) -> list[Row]:
    """Means over texts, for each budget, observation and rung; of several runs on a text the last counts. A figure that a text lacks is
    None."""
    last = {(row["budget"], row.get("observe"), row["rung"], row.get("text")): row for row in rows if row.get("text") != "mean"}
    groups: dict[tuple, list[Row]] = {}
    for (*place, _), row in last.items():
        groups.setdefault(tuple(place), []).append(row)

    def mean(key: str, group: Sequence[Row]) -> float | None:
        known = [value for row in group if (value := row.get(key)) is not None]
        return float(np.mean(known)) if len(known) == len(group) else None

    return [{**group[0], **{key: mean(key, group) for key in _LADDER_FIGURES}} for group in groups.values()]


_LADDER_FIGURES = ("hit_rate", "gain", "hit_rate_mass", "gain_mass", "worst_mass", "fetched", "kld", "same_top", "ms_ratio",
                   "overhead")


def _ladder_line(row: Row) -> tuple[str, ...]:
    return (f"{100 * row['budget']:g}", str(row["rung"]), str(row.get("observe")), percent(row.get("published"), 0),
            percent(row["hit_rate"]), points(row["gain"]), percent(row["hit_rate_mass"]), points(row["gain_mass"]),
            percent(row["worst_mass"]), number(row["fetched"], ".2f"), divergence(row["kld"]), percent(row["same_top"]),
            number(row["ms_ratio"], ".2f"), percent(row["overhead"]))


def _ladder_text(of: Mapping[tuple[float, str], Sequence[Row]], rows: Sequence[Row]) -> str:
    budget = min((budget for budget, _ in of), key=lambda share: abs(share - MAP_BUDGET))
    said = []
    for (its, observe), shown in of.items():
        found = {row["rung"]: row for row in shown}
        told = [f"{name} {percent(row['hit_rate'])} % (published {percent(row['published'], 0)})" for name, row in found.items()
                if row.get("published") is not None]
        told += [f"{name} {percent(found[name]['hit_rate'])} %" for name in ("+ one pool", "oracle, one pool") if name in found]
        if its == budget and told:
            said.append(f"{observe}: {', '.join(told)}")
    means = ", means over the texts" if len({row.get("text") for row in rows} - {"mean"}) > 1 else ""
    return (f"With {100 * budget:g} % of the pages hot the hit rate by access is, by what the policy observes, {'; '.join(said)}{means}. "
            f"Simulated on recorded attention: {where(rows)}.")


@dataclass(frozen=True)
class _Likeness:
    """The distance of a configuration from full attention on one text."""

    name: str
    dial: str
    """The setting that decides how much is read: "10%", "resolution 1000"; empty: the default."""
    read: float
    """Share of the visible tokens."""
    kld: float
    same_top: float


def _likeness(row: Row) -> _Likeness | None:
    """The row's distance; None for a mean over texts (texts are averaged here) and for a row without live figures."""
    if row.get("text") in ("mean", "all"):
        return None
    if row.get("kind") == "ladder":
        name, dial = row["rung"], f"{100 * row['budget']:g}%"
        read, kld, same_top = row.get("live_attended"), row.get("kld"), row.get("same_top")
    elif row.get("kind") == "text" and row.get("mode") not in _REFERENCES:
        name, dial = _mode(str(row.get("mode")))
        read, kld, same_top = row.get("attended_fraction"), row.get("kld_exact"), row.get("same_top_exact")
    else:
        return None
    return None if read is None or kld is None or same_top is None else _Likeness(name, dial, read, kld, same_top)


_REFERENCES = (STOCK, *STOCK_KERNELS, FULL, "exact-unobserved")
"""Bench modes that attend everything."""


def _mode(mode: str) -> tuple[str, str]:
    """The name and the dial of a bench mode such as sparse:sample_budget=1000,policy=lru."""
    base, _, text = mode.partition(":")
    changes = [change for change in text.split(",") if change]
    dials = {"attend=": "", "sample_budget=": "sample budget ", "resolution=": "sample budget "}
    dial = [said + change.removeprefix(key) for change in changes for key, said in dials.items() if change.startswith(key)]
    left = ",".join(change for change in changes if not change.startswith(tuple(dials)))
    return f"{base}:{left}" if left else base, ", ".join(dial)


def quality(ladder_rows: Sequence[Row], rows: Sequence[Row]) -> Section:
    """The section of the live rungs of a ladder, and of texts of `edgekv lab quality`."""
    section = Section("quality", "Quality over what is read")
    found = [(row, likeness) for row in (*ladder_rows, *rows) if (likeness := _likeness(row)) is not None]
    if not found:
        section.missing = "live rungs in ladder.json (edgekv lab ladder --save DIR), or texts of edgekv lab quality -o json"
        return section
    values: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for _, one in found:
        values.setdefault((one.name, one.dial), []).append((one.read, one.kld, one.same_top))
    means = {key: tuple(float(value) for value in np.mean(of, axis=0)) for key, of in values.items()}
    lines_of = {name: sorted(point for (other, _), point in means.items() if other == name) for name, _ in means}
    near = {name: min(of, key=lambda point: abs(point[0] - MAP_BUDGET)) for name, of in lines_of.items()}
    order = sorted(near, key=lambda name: near[name][1])
    named = [name for name in _TOLD if name in near] or order[:LINES]

    def lines(figure: int) -> list[Line]:
        return [Line(name, [point[0] for point in lines_of[name]], [point[figure] for point in lines_of[name]], faint=name not in named,
                     colour=_TOLD.get(name)) for name in order]

    stock = [row["kld_exact"] for row in rows if row.get("kind") == "text" and row.get("mode") == "off" and row.get("kld_exact")]
    target = (float(np.mean(stock)), "stock llama.cpp") if stock else None
    section.curves([Panel("divergence from full attention", lines(1), "mean KLD, nats", "log", target),
                    Panel("same most likely token", lines(2), "of all positions")], "tokens read, of those seen",
                   f"Means over the texts; grey lines stand in the table. {where([row for row, _ in found])}", height=4.2)
    live = [{**row, "n_steps": row.get("n_live_steps", row.get("n_steps"))} for row, _ in found]

    def told(name: str) -> str:
        read, kld, same_top = near[name]
        return f"{name} (KLD {kld:.1e}, same top token {percent(same_top)} %, {percent(read)} % of the tokens read)"

    section.text = (f"Nearest to full attention, of what reads about {100 * MAP_BUDGET:g} % of the tokens, comes {told(order[0])}, and "
                    f"least near {told(order[-1])}. Measured live, teacher-forced: {where(live)}.")
    section.table(("configuration", "set to", "read %", "KLD", "same top %"), [
        (name, dial or "default", percent(read), divergence(kld), percent(same_top))
        for (name, dial), (read, kld, same_top) in sorted(means.items(), key=lambda item: (order.index(item[0][0]), item[1][0]))])
    return section


_TOLD = {"sparse": BLUE, "+ recent pins": RED, "ema": RED, "streaming": GREEN, "lru": ORANGE, "evict": PURPLE}
"""Rungs and bench modes that are drawn with a colour and a name."""


def retention(rows: Sequence[Row]) -> Section:
    """The section of tasks of `edgekv lab quality`."""
    section = Section("retention", "Retention by task")
    asked = _together([row for row in rows if row.get("kind") == "task" and row.get("mode") != "exact" and row.get("length") is None])
    if not asked:
        section.missing = "tasks of edgekv lab quality -o json"
        return section
    tasks: dict[str, dict[str, Interval]] = {}
    for row in asked:
        share = None if row.get("says_nothing") else row.get("retention")
        interval = Interval(share, row.get("retention_low"), row.get("retention_high"))
        tasks.setdefault(str(row.get("task")), {})[str(row.get("mode"))] = interval
    shown = {task: found for task, found in tasks.items() if any(one.value is not None for one in found.values())}
    if shown:
        section.picture(charts.retention_chart(shown, MODE_COLOURS), f"A dot with its 95 % interval for each mode. {where(asked)}")
    silent = [task for task in tasks if task not in shown]
    cannot = f" The model itself cannot do {', '.join(silent)}: that says nothing about the cache." if silent else ""
    section.text = f"Right answers of those that full attention gives, with 95 % intervals.{cannot} Asked live: {where(asked)}."
    section.table(("task", "mode", "asked", "full attention", "kept", "retention %", "95 % interval"), [
        (str(row.get("task")), str(row.get("mode")), number(row.get("asked"), "d"), number(row.get("full_found"), "d"),
         number(row.get("kept"), "d"), percent(row.get("retention"), 0),
         f"{percent(row.get('retention_low'), 0)} to {percent(row.get('retention_high'), 0)}") for row in asked])
    if found := _by_depth(rows):
        section.picture(maps.needle_maps(found), "What each mode finds, by the length of the context and by where in it the answer stands.")
    return section


def _by_depth(rows: Sequence[Row]) -> dict[str, dict[tuple[int, float], float]]:
    """The found share by mode and by (length, part of the context), over all tasks and runs."""
    counts: dict[str, dict[tuple[int, float], list[int]]] = {}
    for row in rows:
        if row.get("kind") == "grid" and row.get("asked"):
            found = counts.setdefault(str(row.get("mode")), {}).setdefault((int(row["length"]), float(row["part"])), [0, 0])
            found[0] += int(row["found"])
            found[1] += int(row["asked"])
    return {mode: {place: found / asked for place, (found, asked) in cells.items()} for mode, cells in counts.items()}


def _together(rows: Sequence[Row]) -> list[Row]:
    """One row for each task and mode, the sum of all runs, which may differ in lengths and seeds."""
    counts: dict[tuple[str, str], Retention] = {}
    merged: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = str(row.get("task")), str(row.get("mode"))
        asked, full_found, found, kept = (int(row.get(name) or 0) for name in ("asked", "full_found", "found", "kept"))
        one = Retention(asked, full_found, found, kept, float(row.get("luck") or 0))
        counts[key] = counts.get(key, Retention()) + one
        merged[key] = {**merged.get(key, row), **counts[key].row()}
    return list(merged.values())
