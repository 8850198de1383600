"""Bars and lines: the ladder, curves over the budget, over time, and retention by task. Shares go in as 0 to 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgekv.lab.report.drawing import (
    BLUE,
    GRID,
    INK,
    MUTED,
    NARROW,
    ORANGE,
    PAPER,
    RED,
    SERIES,
    WIDTH,
    canvas,
    drawn,
    end_labels,
    percent_axis,
    plain_axis,
    plain_log_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
def line_chart(panels: Sequence[Panel], x_label: str, percent_x: bool = True, height: float = 3.6, narrow: bool = False) -> Figure:
    """Draw panels in pairs, or in one column if narrow. Named lines have their names at their right ends; faint lines are the
    grey background. height: inches of a row of panels."""
    width, n_columns = (NARROW, 1) if narrow else (WIDTH, min(2, len(panels)))
    n_rows = -(-len(panels) // n_columns)
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines if not line.faint and not line.estimate))
    widest = max(map(len, names), default=0)
    legend = narrow and widest > _AT_ENDS
    figure, axes = canvas(width, height * n_rows + (0.2 * len(names) if legend else 0), n_rows, n_columns)
    figure.get_layout_engine().set(h_pad=0.1 if n_rows > 1 else 0.04)  # type: ignore[union-attr,call-arg]  # canvas() has set a constrained one
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    ends: list[list[tuple[float, float, str, str]]] = []
    for ax, panel in zip(axes, panels):
        ends.append(_draw_lines(ax, panel))
        ax.set_title(panel.title)
        ax.set(xlabel=x_label, ylabel=panel.y_label)
        _x_ticks(ax, panel, percent_x, 0.25 if narrow or n_columns > 1 and not percent_x else 0.16 if n_columns > 1 else 0.12)
    for ax in axes[: len(panels)]:  # room for the names
        left, right = ax.get_xlim()
        share = 0.0 if legend else min(0.6, 0.072 * widest * n_columns / (width - 1.0))
        ticks = [tick for tick in ax.get_xticks() if left <= tick <= right]
        ax.set_xlim(left, left + (right - left) / (1 - share))
        ax.spines["bottom"].set_bounds(left, right)
        ax.set_xticks(ticks)
        ax.xaxis.label.set_x((1 - share) / 2)
    for ax, panel, places in zip(axes, panels, ends):
        left, right = ax.spines["bottom"].get_bounds()
        if panel.target is not None:  # the target is always in sight
            ax.update_datalim([(left, panel.target[0])])
            ax.autoscale_view(scalex=False)
        limits = ax.get_ylim()
        ticks = [tick for tick in ax.get_yticks() if limits[0] <= tick <= limits[1]]
        ax.hlines(ticks, left, right, color=GRID, linewidth=0.7, zorder=0)
        if panel.target is not None:
            value, name = panel.target
            ax.hlines(value, left, right, color=ORANGE, linewidth=1.2, linestyle=":")
            ax.annotate(name, (left, value), xytext=(3, -10), textcoords="offset points", color=ORANGE, fontsize=8.5)
        ax.set_ylim(limits)
        if not legend:
            end_labels(ax, places)
    if legend:
        _legend_below(figure, {name: colour for places in ends for *_, name, colour in places})
    return figure


def _x_ticks(ax: Axes, panel: Panel, percent: bool, least: float) -> None:
    """Set ticks at the measured values if they are few, otherwise at round numbers."""
    values = sorted({x for line in panel.lines if not line.estimate for x in line.x})
    if percent:
        percent_axis(ax.xaxis, 1)
        ax.set_xticks(_apart(values, least))
    else:
        plain_axis(ax.xaxis, 4 if least > 0.2 else 8)
        if len(values) <= _FEW and all(float(value).is_integer() for value in values):
            ax.set_xticks(_apart(values, least))


_FEW = 8
"""So many values or fewer are the ticks themselves."""

_AT_ENDS = 14
"""Longest name in characters that leaves room for the lines of a narrow picture."""


def _legend_below(figure: Figure, colours: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D

    figure.legend(handles=[Line2D([], [], color=colour, linestyle="--" if colour == INK else "-", label=name) for name, colour in colours.items()],
                  loc="outside lower left", ncols=1)


def _draw_lines(ax: Axes, panel: Panel) -> list[tuple[float, float, str, str]]:
    if panel.scale == "log":
        ax.set_yscale("log")
        plain_log_axis(ax.yaxis)
    elif panel.scale == "missed":
        _missed_axis(ax, [line for line in panel.lines if not line.faint])
    elif panel.scale in ("percent", "percent from zero"):
        plain_axis(ax.yaxis, 6)
        percent_axis(ax.yaxis)
    elif panel.scale == "from zero":
        plain_axis(ax.yaxis, 6)
    if panel.scale.endswith("from zero"):
        ax.set_ylim(bottom=0, top=1.05 * max(y for line in panel.lines for y in line.y) or 1.0)
    free = iter([colour for colour in SERIES if colour not in {line.colour for line in panel.lines}] * len(panel.lines))
    ends = []
    for line in panel.lines:
        if line.faint:
            ax.plot(line.x, line.y, color=GRID, linewidth=1.2, zorder=1)
            continue
        colour = INK if line.ceiling else line.colour or next(free)
        if line.estimate:
            ax.plot(line.x, line.y, color=colour, linestyle=":", linewidth=1.4, zorder=2)
            continue
        marker, style = "o" if len(line.x) <= 12 else "", "--" if line.ceiling else "-"
        ax.plot(line.x, line.y, color=colour, marker=marker, linestyle=style, zorder=3)
        ends.append((line.x[-1], line.y[-1], line.name, colour))
    return ends


_MISSED_TICKS = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)


def _missed_axis(ax: Axes, lines: Sequence[Line]) -> None:
    """Make a logarithmic axis of the part missing to 1, labelled with the shares, over the range of `lines`."""
    from matplotlib.ticker import FixedLocator, NullLocator

    values = np.concatenate([np.asarray(line.y, float) for line in lines])
    low, high = float(values.min()), min(float(values.max()), 0.9999)
    ax.set_yscale("function", functions=(lambda y: -np.log10(np.maximum(1 - y, 1e-6)), lambda t: 1 - 10.0 ** -t))
    ticks = [tick for tick in _MISSED_TICKS if tick < 1 - (1 - high) * 0.8]
    ticks = [tick for tick, following in zip(ticks, [*ticks[1:], 1.0]) if following > 1 - (1 - low) * 1.1]
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_minor_locator(NullLocator())
    percent_axis(ax.yaxis)
    ax.set_ylim(min(ticks[0], 1 - (1 - low) * 1.1), 1 - (1 - high) * 0.8)


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
def retention_chart(tasks: Mapping[str, Mapping[str, Interval]], known: Mapping[str, str], narrow: bool = False) -> Figure:
    """Draw a dot with its interval for each configuration. tasks: retention by task and configuration. known: colours of some
    configurations."""
    names = list(dict.fromkeys(name for row in tasks.values() for name in row))
    free = iter([colour for colour in SERIES if colour not in known.values()] * len(names))
    colours = {name: known.get(name) or next(free, MUTED) for name in names}
    n_columns = 1 if narrow else min(4, len(names))
    height = 0.17 * len(tasks) * (len(names) + 1.2) + 0.85 + 0.25 * -(-len(names) // n_columns)
    figure, (ax,) = canvas(NARROW if narrow else WIDTH, max(2.4, height))
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
