"""Pictures on the axes of the model: layers across, KV heads down; and pages over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgekv.lab.heads.roles import ROLES, UNKNOWN, Profile, Role
from edgekv.lab.report.drawing import BLUE, GREEN, GRID, INK, MAP_COLOURS, MUTED, PAPER, RED, WIDTH, canvas, drawn, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROLE_COLOURS = {Role.RETRIEVAL: RED, Role.ANCHOR: BLUE, Role.RECENCY: GREEN, Role.OTHER: GRID}


@drawn
def role_map(profile: Profile, title: str = "", layers: Sequence[int] | None = None) -> Figure:
    """Draw the role of each head as a letter in a coloured cell, and below it the place of each layer's mass."""
    roles = profile.roles()
    n_layers, n_heads = roles.shape
    layers = range(n_layers) if layers is None else layers
    figure, (grid, bars) = canvas(max(WIDTH, 0.26 * n_layers + 1), 1.3 + 0.3 * n_heads + 2.2, 2, 1, sharex=True,
                                  height_ratios=[0.3 * n_heads, 1.9])
    from matplotlib.patches import Patch, Rectangle

    for il in range(n_layers):
        for head in range(n_heads):
            role = None if roles[il, head] == UNKNOWN else ROLES[roles[il, head]]
            if role is not None:
                grid.add_patch(Rectangle((il - 0.46, head - 0.46), 0.92, 0.92, color=ROLE_COLOURS[role], linewidth=0))
                grid.text(il, head, role.letter, ha="center", va="center", fontsize=8.5,
                          color=MUTED if role is Role.OTHER else PAPER, fontweight="normal" if role is Role.OTHER else "bold")
    grid.set(xlim=(-0.6, n_layers - 0.4), ylim=(n_heads - 0.4, -0.6), ylabel="KV head")
    _heads_axis(grid, n_heads)
    grid.set_title(title, pad=28)
    counts = {role: int((roles == i).sum()) for i, role in enumerate(ROLES)}
    grid.legend(handles=[Patch(color=ROLE_COLOURS[role], label=f"{role.letter}  {role.value}, {counts[role]}") for role in ROLES],
                loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, borderaxespad=0.2)
    below = np.zeros(n_layers)
    for values, name, colour in ((profile.sink, "first page", BLUE), (profile.middle, "between", RED),
                                 (profile.recent, "newest pages", GREEN)):
        share = np.array([heads[~np.isnan(heads)].mean() if (~np.isnan(heads)).any() else 0.0 for heads in values])
        bars.bar(range(n_layers), share, 0.86, bottom=below, color=colour, label=name)
        below += share
    bars.set(ylim=(0, 1), ylabel="attention mass", xlabel="layer")
    percent_axis(bars.yaxis)
    bars.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2)
    _layers_axis(bars, layers)
    for ax in (grid, bars):
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
    return figure


@drawn
def hit_maps(maps: Mapping[str, np.ndarray], layers: Sequence[int], lowest: float | None = None) -> Figure:
    """Draw each head's hit rate by mass, one panel per configuration on one scale of colours; a dot marks the worst head."""
    n_layers, n_heads = next(iter(maps.values())).shape
    known = np.concatenate([values[~np.isnan(values)] for values in maps.values()])
    lowest = float(np.floor(known.min() * 20) / 20) if lowest is None else lowest
    figure, axes = canvas(max(WIDTH, 0.26 * n_layers + 1), len(maps) * (0.55 + 0.24 * n_heads) + 0.5, len(maps), 1, sharex=True)
    for ax, (name, values) in zip(axes, maps.items()):
        image = ax.imshow(values.T, aspect="auto", cmap=MAP_COLOURS, vmin=lowest, vmax=1.0, interpolation="none")
        il, head = np.unravel_index(np.nanargmin(values), values.shape)
        ax.plot(il, head, "o", color="white", markeredgecolor="black", markersize=5)
        ax.set_title(f"{name}: mean {100 * np.nanmean(values):.1f} %, worst head {100 * values[il, head]:.1f} %")
        ax.set_ylabel("KV head")
        _heads_axis(ax, n_heads)
        ax.spines[:].set_visible(False)
    axes[-1].set_xlabel("layer")
    _layers_axis(axes[-1], layers)
    bar = figure.colorbar(image, ax=axes, label="attention mass on hot pages", fraction=0.02, pad=0.01)
    percent_axis(bar.ax.yaxis)
    bar.outline.set_visible(False)
    return figure


@drawn
def needle_maps(found: Mapping[str, Mapping[tuple[int, float], float]]) -> Figure:
    """Draw the found shares by (length, part of the context), one panel per mode on one scale; cells without questions stay blank."""
    lengths, parts = (sorted({place[i] for cells in found.values() for place in cells}) for i in (0, 1))
    n_columns = min(3, len(found))
    n_rows = -(-len(found) // n_columns)
    figure, axes = canvas(WIDTH, n_rows * (0.7 + 0.3 * len(parts)) + 0.3, n_rows, n_columns, sharey=True)
    for ax, (mode, cells) in zip(axes, found.items()):
        shares = np.array([[cells.get((int(length), part), np.nan) for length in lengths] for part in parts])
        image = ax.imshow(shares, aspect="auto", cmap=MAP_COLOURS, vmin=0.0, vmax=1.0, interpolation="none")
        ax.set_title(mode)
        ax.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
        ax.set_yticks(range(len(parts)), [f"{100 * part:.0f} %" for part in parts])
        ax.spines[:].set_visible(False)
    for ax in axes[len(found) :]:
        ax.set_visible(False)
    axes[0].set(ylabel="depth", xlabel="tokens")
    bar = figure.colorbar(image, ax=axes, label="found", fraction=0.02, pad=0.01)
    percent_axis(bar.ax.yaxis)
    bar.outline.set_visible(False)
    return figure


def _heads_axis(ax: Axes, n_heads: int) -> None:
    ax.set_yticks(range(n_heads))
    ax.tick_params(axis="y", length=0)


def _layers_axis(ax: Axes, layers: Sequence[int]) -> None:
    """Number every layer if there is room, otherwise every fifth."""
    step = 1 if len(layers) <= 40 else 5
    ticks = [il for il in range(len(layers)) if il % step == 0]
    ax.set_xticks(ticks, [str(layers[il]) for il in ticks])
    ax.tick_params(axis="x", labelcolor=INK)
