"""The parts of a report about what is kept: quality, retention by task, the ladder, and simulations."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from edgekv.common.enums import FULL, STOCK, STOCK_KERNELS
from edgekv.common.units import percent
from edgekv.lab.report.pictures import STOCK_NAME, Panel, line_chart, retention_chart
from edgekv.lab.report.sections import Column, Row, Section, lines_of, where

_DISTANCE = ("read", "kld", "same")


def quality(rows: Sequence[Row]) -> Section:
    """Texts of `edgekv lab quality`: the distance from full attention over the share that is read. A mode at several settings of how much it reads is
    one line."""
    section = Section("quality", "Quality over what is read")
    found = [point for row in rows if (point := _point(row)) is not None]
    if not found:
        section.missing = "texts of edgekv lab quality -o json"
        return section
    settings = dict.fromkeys((of["mode"], of["dial"]) for of in found)
    points = [{"mode": name, "dial": dial, **{key: fmean(of[key] for of in found if (of["mode"], of["dial"]) == (name, dial)) for key in _DISTANCE}}
              for name, dial in settings]
    best = min(points, key=lambda of: of["kld"])
    section.verdict = f"Reading {percent(best['read'])} % of the tokens, {best['mode']} differs from full attention by a KLD of {best['kld']:.1e}."
    lines = lines_of(points, "mode", "read", "kld")
    if stock := [row["kld_exact"] for row in rows if row.get("mode") == STOCK and row.get("kld_exact")]:
        noise = fmean(stock)
        lines[STOCK_NAME] = {0.0: noise, max(of["read"] for of in points): noise}
        section.verdict = f"{section.verdict[:-1]}, {'inside' if best['kld'] <= noise else 'outside'} the {noise:.1e} between llama.cpp's kernels and ours."
    section.picture(line_chart([
        Panel("divergence from full attention", "mean KLD, nats", lines, "log"),
        Panel("same most likely token", "of all positions", lines_of(points, "mode", "read", "same"), "percent")],
        "tokens read, of those seen", percent_x=True), f"Means over the texts. {where(found)}")
    section.text = f"{section.verdict} Measured live, teacher-forced."
    section.table(sorted(points, key=lambda of: (of["mode"], of["read"])), (
        Column("mode", "configuration"), Column("dial", "set to"), Column("read", "read %", percent), Column("kld", "KLD", "{:.1e}".format),
        Column("same", "same top %", percent)))
    return section


def _point(row: Row) -> Row | None:
    """The row's distance from full attention; None for a mean over texts (they are averaged here), and for modes that attend everything."""
    base, _, changes = str(row.get("mode")).partition(":")
    told = [change for change in changes.split(",") if change]
    dials = [change for change in told if change.startswith(("evict_to=", "sample_budget="))]
    name = ":".join(filter(None, (base, ",".join(change for change in told if change not in dials))))
    figures = dict(zip(_DISTANCE, (row.get(key) for key in ("attended_fraction", "kld_exact", "same_top_exact"))))
    skip = row.get("text") in ("mean", "all") or name in (STOCK, *STOCK_KERNELS, FULL, "exact-unobserved")
    return None if skip or None in figures.values() else {**row, "mode": name, "dial": ", ".join(dials) or "default", **figures}


def retention(tasks: Sequence[Row], columns: Iterable[Any]) -> Section:
    """Tasks of `edgekv lab quality`."""
    section = Section("retention", "Retention by task")
    rows = [{**row, "retention_interval": None if row["retention_low"] is None else f"{percent(row['retention_low'], 0)}..{percent(row['retention_high'], 0)}"}
            for row in tasks if row.get("mode") != FULL and row.get("length") is None]
    if not rows:
        section.missing = "tasks of edgekv lab quality -o json"
        return section
    shown: dict[str, dict[str, Row]] = {}
    for row in rows:
        if not row.get("says_nothing") and row.get("retention") is not None:
            shown.setdefault(str(row["task"]), {})[str(row["mode"])] = row
    if shown:
        section.picture(retention_chart(shown), f"A dot with its 95 % interval for each mode. {where(rows)}")
    silent = dict.fromkeys(str(row["task"]) for row in rows if row.get("says_nothing"))
    section.text = "Right answers of those that full attention gives, with 95 % intervals, asked live."
    if silent:
        section.text += f" The model itself cannot do {', '.join(silent)}: that says nothing about the cache."
    section.table(rows, columns, where(rows))
    return section


def ladder(rows: Sequence[Row], columns: Iterable[Any]) -> Section:
    """Rows of `edgekv lab ladder`, as means over texts where it has them."""
    section = Section("ladder", "The ladder", missing="" if rows else "ladder.json (edgekv lab ladder --save DIR)")
    shown = [row for row in rows if row.get("text") == "mean"] or rows
    panels = []
    for observe in dict.fromkeys(row.get("observe") for row in shown if row.get("observe") != "ahead"):  # the oracle, a ceiling for all
        lines = lines_of([row for row in shown if row.get("observe") == observe], "rung", "budget", "hit_rate")
        panels.append(Panel(f"observed: {observe}", "hit rate, by row", lines, "percent"))
    if panels:
        section.picture(line_chart(panels, "pages that are hot", percent_x=True), "Share of the rows that mode sparse reads which were in hot pages.")
        section.text = "What each idea adds to the hit rate, simulated on recorded attention; a gain is to the rung without the idea, in points."
        section.table(shown, columns, where(rows))
    return section


def budgets(rows: Sequence[Row], columns: Sequence[Any]) -> Section:
    """Rows of `edgekv lab sim` of whole models."""
    section = Section("budget", "Hit rate by mass over the budget")
    rows = [{**row, "name": ", ".join(str(row.get(key)) for key in ("policy", "split", "observe"))}
            for row in rows if isinstance(row["budget"], float) and row.get("layer") is None]
    if not rows:
        section.missing = "rows of edgekv lab sim -o json"
        return section
    lines = lines_of(rows, "name", "budget", "hit_rate_mass")
    section.picture(line_chart([Panel("mean over the traces", "attention mass on hot pages", lines, "percent")],
                               "pages of the visible ones, per head on average", percent_x=True), "")
    section.text = (f"Most attention falls on hot pages under {max(lines, key=lambda name: fmean(lines[name].values()))}. With honest observation the "
                    "policy decides what is attended, and what it covers is what is kept.")
    section.table(sorted(rows, key=lambda row: (row["budget"], -row["hit_rate_mass"])), columns)
    return section
