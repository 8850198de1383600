"""Bars and lines: the ladder, curves over the budget, over time, and retention by task. Shares go in as 0 to 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from edgekv.lab.report.drawing import (
    BLUE,
    GRID,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    RED,
    SERIES,
    WIDTH,
    canvas,
    drawn,
    percent_axis,
    plain_axis,
    plain_log_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


@dataclass(frozen=True)
class Line:
    """A named line. `faint`: one of many, drawn in grey without its name; `ceiling`: an upper bound, dashed."""

    name: str
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    faint: bool = False
    ceiling: bool = False
    colour: str | None = None
    """None: the next colour of SERIES."""
    estimate: bool = False
    """The line is estimated, not measured: dotted, without its name."""


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    title: str
    lines: Sequence[Line]
    y_label: str
    scale: str = "percent"
    """percent, plain, from zero, percent from zero, log, or missed: shares near 100 %, on a logarithmic scale of the missing part."""
    target: tuple[float, str] | None = None
    """A line across, and its meaning."""


@dataclass(frozen=True)
class LadderRung:
    """A rung of the ladder at one budget."""

    name: str
    value: float
    published: float | None = None


@drawn
def ladder_chart(panels: Mapping[str, Sequence[LadderRung]], x_label: str) -> Figure:
    """Draw a panel for each budget, with a bar for each rung and a diamond at its published figure."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    n_columns = min(2, len(panels))
    n_rows = -(-len(panels) // n_columns)
    n_rungs = max(len(steps) for steps in panels.values())
    figure, axes = canvas(WIDTH, n_rows * (0.235 * n_rungs + 0.5) + 0.5, n_rows, n_columns, sharey=True, sharex=True)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    values = [value for steps in panels.values() for step in steps for value in (step.value, step.published) if value is not None]
    lowest = max(0.0, np.floor((min(values) - 0.05) * 10) / 10)
    for ax, (title, steps) in zip(axes, panels.items()):
        places = range(len(steps))
        ax.barh(places, [step.value - lowest for step in steps], 0.68, left=lowest, color=BLUE)
        for place, step in zip(places, steps):
            if step.published is not None:
                ax.plot(step.published, place, "D", color=RED, markeredgecolor=PAPER, markersize=6.5, clip_on=False)
            inside = step.published is not None and abs(step.published - step.value - 0.02) < 0.035
            ax.text(step.value - 0.006 if inside else step.value + 0.006, place, f"{100 * step.value:.1f}", va="center",
                    ha="right" if inside else "left", fontsize=8.5, color=PAPER if inside else INK)
        ax.set_yticks(places, [step.name for step in steps])
        ax.set(ylim=(n_rungs - 0.4, -0.6), xlim=(lowest, 1.03))
        ax.set_title(title)
        ax.tick_params(axis="y", length=0, labelcolor=INK)
        percent_axis(ax.xaxis)
        ax.spines["left"].set_visible(False)
    for ax in axes[max(0, len(panels) - n_columns) : len(panels)]:
        ax.set_xlabel(x_label)
        ax.tick_params(labelbottom=True)
    figure.legend(handles=[Patch(color=BLUE, label="measured here"),
                           Line2D([], [], marker="D", color=RED, linestyle="none", markersize=6.5, label="published")],
                  loc="outside upper left", ncols=2)
    return figure


@drawn
def line_chart(panels: Sequence[Panel], x_label: str, percent_x: bool = True, height: float = 3.6) -> Figure:
    """Draw panels in pairs, with the names of all lines below; faint lines are the grey background. height: inches of a row of panels."""
    n_columns = min(2, len(panels))
    n_rows = -(-len(panels) // n_columns)
    figure, axes = canvas(WIDTH, height * n_rows, n_rows, n_columns)
    lines = [line for panel in panels for line in panel.lines if not line.faint]
    known = {line.name: line.colour or (INK if line.ceiling else None) for line in lines}
    free = cycle(colour for colour in SERIES if colour not in known.values())
    colours = {name: colour or next(free) for name, colour in known.items()}
    named: dict[str, Line2D] = {}
    for ax, panel in zip(axes, panels):
        named |= _draw_lines(ax, panel, colours)
        if panel.target is not None:
            value, name = panel.target
            named[name] = ax.axhline(value, color=ORANGE, linewidth=1.2, linestyle=":")
        ax.grid(axis="y")
        ax.set(title=panel.title, xlabel=x_label, ylabel=panel.y_label)
        _x_ticks(ax, panel, percent_x, 0.16 if n_columns > 1 else 0.12)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    figure.legend(list(named.values()), list(named), loc="outside lower left", ncols=max(1, min(4, 90 // max(map(len, named)))))
    return figure


def _x_ticks(ax: Axes, panel: Panel, percent: bool, least: float) -> None:
    """Set ticks at the measured values if they are few, otherwise at round numbers."""
    values = sorted({x for line in panel.lines if not line.estimate for x in line.x})
    if percent:
        percent_axis(ax.xaxis, 1)
        ax.set_xticks(_apart(values, least))
    else:
        plain_axis(ax.xaxis, 6)
        if len(values) <= _FEW and all(float(value).is_integer() for value in values):
            ax.set_xticks(_apart(values, least))


_FEW = 8
"""So many values or fewer are the ticks themselves."""

_MISSED_TICKS = (0.05, 0.1, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)


def _draw_lines(ax: Axes, panel: Panel, colours: Mapping[str, str]) -> dict[str, Line2D]:
    """The named lines that were drawn, by name."""
    from matplotlib.ticker import FixedLocator, NullLocator

    if panel.scale == "log":
        ax.set_yscale("log")
        plain_log_axis(ax.yaxis)
    elif panel.scale == "missed":
        ax.set_yscale("logit")
        ax.yaxis.set_major_locator(FixedLocator(_MISSED_TICKS))
        ax.yaxis.set_minor_locator(NullLocator())
        percent_axis(ax.yaxis)
    elif panel.scale.startswith("percent"):
        plain_axis(ax.yaxis, 6)
        percent_axis(ax.yaxis)
    elif panel.scale == "from zero":
        plain_axis(ax.yaxis, 6)
    if panel.scale.endswith("from zero"):
        ax.set_ylim(bottom=0, top=1.05 * max(y for line in panel.lines for y in line.y) or 1.0)
    named = {}
    for line in panel.lines:
        y = np.clip(line.y, 1e-4, 0.9999) if panel.scale == "missed" else line.y
        if line.faint:
            ax.plot(line.x, y, color=GRID, linewidth=1.2, zorder=1)
        elif line.estimate:
            ax.plot(line.x, y, color=colours[line.name], linestyle=":", linewidth=1.4, zorder=2)
        else:
            (named[line.name],) = ax.plot(line.x, y, "--" if line.ceiling else "-", color=colours[line.name],
                                          marker="o" if len(line.x) <= 12 else "", zorder=3)
    return named


@dataclass(frozen=True)
class Interval:
    """A share and its confidence interval; None: full attention can do no such task."""

    value: float | None
    low: float | None = None
    high: float | None = None


def _apart(ticks: Sequence[float], least: float = 0.12) -> list[float]:
    """The ticks without those whose numbers would touch the previous one's: closer than `least`, as a part of the axis."""
    kept = list(ticks[:1])
    for tick in ticks[1:]:
        if tick - kept[-1] >= least * (ticks[-1] - ticks[0]):
            kept.append(tick)
    return kept


@drawn
def retention_chart(tasks: Mapping[str, Mapping[str, Interval]], known: Mapping[str, str]) -> Figure:
    """Draw a dot with its interval for each configuration. tasks: retention by task and configuration. known: colours of some
    configurations."""
    names = list(dict.fromkeys(name for row in tasks.values() for name in row))
    free = iter([colour for colour in SERIES if colour not in known.values()] * len(names))
    colours = {name: known.get(name) or next(free, MUTED) for name in names}
    n_columns = min(4, len(names))
    height = 0.17 * len(tasks) * (len(names) + 1.2) + 0.85 + 0.25 * -(-len(names) // n_columns)
    figure, (ax,) = canvas(WIDTH, max(2.4, height))
    from matplotlib.lines import Line2D

    span = 0.8 / max(1, len(names))
    for place, row in enumerate(tasks.values()):
        for i, name in enumerate(names):
            interval = row.get(name)
            if interval is None or interval.value is None:
                continue
            y = place - 0.4 + span * (i + 0.5)
            colour = colours[name]
            if interval.low is not None and interval.high is not None:
                ax.plot((interval.low, interval.high), (y, y), color=colour, linewidth=1.6)
            ax.plot(interval.value, y, "o", color=colour, markersize=5.5)
        if place:
            ax.axhline(place - 0.5, color=GRID, linewidth=0.7)
    ax.set_yticks(range(len(tasks)), list(tasks))
    ax.set(ylim=(len(tasks) - 0.5, -0.5), xlabel="right answers of those that full attention gives")
    low = min((interval.low if interval.low is not None else interval.value for row in tasks.values() for interval in row.values()
               if interval.value is not None), default=0.0)
    ax.set_xlim(max(0.0, low - 0.05), 1.02)
    percent_axis(ax.xaxis)
    ax.axvline(1.0, color=MUTED, linewidth=0.8, linestyle=":")
    ax.tick_params(axis="y", length=0, labelcolor=INK)
    ax.spines["left"].set_visible(False)
    figure.legend(handles=[Line2D([], [], color=colour, marker="o", label=name) for name, colour in colours.items()],
                  loc="outside upper left", ncols=n_columns)
    return figure
