"""Lines and intervals. Shares go in as 0 to 1. Draw them within `drawing.style()`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field

from edgekv.lab.report.drawing import BLUE, GREEN, INK, ORANGE, PURPLE, RED, SERIES, VIOLET, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Lines = Mapping[str, Mapping[float, float]]
"""For the name of each line its y by x."""

STOCK_NAME, LIMIT = "stock llama.cpp", "limit: weights alone"
COLOURS = {
    STOCK_NAME: RED, "off-flash": RED, "off-noflash": PURPLE, "exact": GREEN, "sparse": BLUE, "endpoint": VIOLET, LIMIT: INK,
    "+ recent pins": RED, "ema": RED, "streaming": GREEN, "lru": ORANGE, "evict": PURPLE,
}
"""Colours that are the same in every picture; other names take free ones."""


class Panel(Struct, frozen=True):
    """One set of axes."""

    title: str
    y_label: str
    lines: Lines
    scale: str = "zero"
    """zero: from zero on; log; percent, and "percent from zero"."""
    estimates: Lines = field(default_factory=dict)
    """Dotted, in the colours of the lines of these names."""


def line_chart(panels: Sequence[Panel], x_label: str, percent_x: bool = False) -> Figure:
    """Draw panels in pairs, with the names of all lines below."""
    n_rows = -(-len(panels) // 2)
    figure, axes = canvas(3.6 * n_rows + 0.3, n_rows, min(2, len(panels)))
    for ax in axes[len(panels):]:
        ax.remove()
    colours = _colours(dict.fromkeys(name for panel in panels for name in (*panel.lines, *panel.estimates)))
    for ax, panel in zip(axes, panels):
        for name, points in panel.lines.items():
            ax.plot(*zip(*sorted(points.items())), "--" if name == LIMIT else "-", marker="o", label=name, color=colours[name], zorder=3)
        for name, points in panel.estimates.items():
            ax.plot(*zip(*sorted(points.items())), ":", linewidth=1.4, label=f"{'_' * (name in panel.lines)}{name}", color=colours[name], zorder=2)
        ax.grid(axis="y")
        ax.set(title=panel.title, xlabel=x_label, ylabel=panel.y_label)
        ax.locator_params(axis="x", nbins=6, integer=not percent_x)
        _label(ax.xaxis, "percent" if percent_x else "")
        _label(ax.yaxis, panel.scale)
        if "zero" in panel.scale:
            ax.set_ylim(bottom=0)
    named = {str(handle.get_label()): handle for ax in axes for handle in ax.get_legend_handles_labels()[0]}
    figure.legend(list(named.values()), list(named), loc="outside lower left", ncols=max(1, min(4, 90 // max(map(len, named)))))
    return figure


def retention_chart(tasks: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Figure:
    """Draw a dot with its interval for each mode: rows of `edgekv lab quality` by task and mode."""
    colours = _colours(dict.fromkeys(name for row in tasks.values() for name in row))
    figure, (ax,) = canvas(max(2.4, 0.17 * len(tasks) * (len(colours) + 1.2) + 1.2))
    for i, (name, colour) in enumerate(colours.items()):
        shown = [(place - 0.4 + 0.8 * (i + 0.5) / len(colours), row[name]) for place, row in enumerate(tasks.values()) if name in row]
        shares, lows, highs = np.array([[of["retention"], of["retention_low"], of["retention_high"]] for _, of in shown]).T
        ax.errorbar(shares, [y for y, _ in shown], xerr=[shares - lows, highs - shares], fmt="o", color=colour, label=name, elinewidth=1.6)
    ax.set_yticks(range(len(tasks)), list(tasks))
    ax.set(xlim=(0, 1.02), ylim=(len(tasks) - 0.5, -0.5), xlabel="right answers of those that full attention gives")
    _label(ax.xaxis, "percent")
    ax.spines["left"].set_visible(False)
    ax.tick_params(length=0, labelcolor=INK)
    figure.legend(loc="outside upper left", ncols=4)
    return figure


def _colours(names: Collection[str]) -> dict[str, str]:
    free = cycle([colour for colour in SERIES if colour not in {COLOURS.get(name) for name in names}] or SERIES)
    return {name: COLOURS.get(name) or next(free) for name in names}


def _label(axis: Any, scale: str) -> None:
    """Label with numbers such as 16,384 and 0.25, or with percent."""
    from matplotlib.ticker import LogLocator, PercentFormatter

    if scale == "log":
        axis.axes.set_yscale("log")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter("")
    axis.set_major_formatter(PercentFormatter(1.0) if scale.startswith("percent") else "{x:,g}")
