"""Draws KL divergence against the share of the cache that each policy keeps, from the tables of edgekv/lab/results.

    python -m edgekv.lab.report.shares_kept edgekv/lab/results edgekv/policies/kept.svg
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from edgekv.lab.report.charts import Line, Panel, line_chart
from edgekv.lab.report.drawing import INK, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED = ("streaming", "h2o", "snapkv", "ema", "lru", "random")
"""The policies whose lines are drawn in colour; the others are grey."""

DEFAULT, GEMMA = "policies_in_evict.csv", "policies_in_evict_gemma.csv"
"""The tables of texts that are read whole: of the default model, and of gemma3-270m."""

Curves = dict[str, list[tuple[float, float]]]
"""By policy: (share kept from 0 to 1, mean KLD of the texts), from the least share on."""


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _kld(row: dict[str, str]) -> float:
    return fmean(float(value) for name, value in row.items() if name.startswith("kld_"))


def bounded(folder: Path) -> Curves:
    """Of `policies_bounded.csv`: a text goes through a cache of so many cells."""
    curves: Curves = {}
    for row in _rows(folder / "policies_bounded.csv"):
        curves.setdefault(row["policy"].partition("+")[0], []).append((int(row["kept_of_4096"]) / 4096, _kld(row)))
    return curves


def read_whole(folder: Path, table: str = DEFAULT) -> Curves:
    """Of such a table: a text is read first, then cut. Mode sparse stands there by the rows that a head reads of 4,096."""
    curves: Curves = {}
    for row in _rows(folder / table):
        rows = re.fullmatch(r"sparse.* \((\d+) rows a head\)", row["mode"])
        if rows:
            curves.setdefault("sparse", []).append((int(rows[1]) / 4096, _kld(row)))
        elif row["mode"] != "off":
            curves.setdefault(row["mode"].partition("+")[0], []).append((float(row["kept_%"]) / 100, _kld(row)))
    return {name: sorted(points) for name, points in curves.items()}


def noise(folder: Path, table: str = DEFAULT) -> float:
    """The divergence of stock's two kernels, the mean of the same texts."""
    return next(_kld(row) for row in _rows(folder / table) if row["mode"] == "off")


def _line(name: str, points: list[tuple[float, float]], faint: bool = False, colour: str | None = None) -> Line:
    return Line(name, [share for share, _ in points], [kld for _, kld in points], faint=faint, colour=colour)


def chart(folder: Path) -> Figure:
    """All tables, a panel each, with stock's own noise dashed."""
    panels = []
    for title, curves, stock in (("bounded: the text passes through", bounded(folder), noise(folder)),
                                 ("read whole, then cut", read_whole(folder), noise(folder)),
                                 ("the same, gemma3-270m", read_whole(folder, GEMMA), noise(folder, GEMMA))):
        lines = [_line(name, curves[name], colour=INK if name == "sparse" else None) for name in (*NAMED, "sparse") if name in curves]
        others = [_line(name, points, faint=True) for name, points in curves.items() if name not in (*NAMED, "sparse", "none")]
        ends = curves[NAMED[0]][0][0], curves[NAMED[0]][-1][0]
        panels.append(Panel(title, [*others, *lines, Line("stock itself", ends, (stock,) * 2, ceiling=True)], "KL divergence", "log"))
    return line_chart(panels, "tokens kept; mode sparse: rows read")


if __name__ == "__main__":
    results, picture = map(Path, sys.argv[1:])
    save(chart(results), picture)
