"""A picture of one stream: which pages of which KV head live where, and where attention goes. Small enough to be sent several times a
second, whatever the context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgekv.pages.residency import State
from edgekv.reports import LayerReport

if TYPE_CHECKING:
    from edgekv.live.runtime import Runtime

MOST_COLUMNS = 512
MOST_LINES = 256
FEWEST_COLUMNS = 64

EMPTY, HOME, FILLING, MOVING, SOME, ALL = 0, 1, 2, 3, 4, 15
"""Places. From SOME to ALL: in the arena, the share of a field's pages that are."""
_PLACE_OF = np.zeros(len(State), np.uint8)
_PLACE_OF[[State.HOME, State.FILLING, State.MOVING, State.RESIDENT]] = HOME, FILLING, MOVING, ALL

LEVELS = 15
FAINTEST, BRIGHTEST = 0.03, 30.0
"""Attention of a field, in even shares of its line's: up to the first it is at level 0, from the second on at the highest; between them by
the logarithm."""


@dataclass(frozen=True)
class PageMap:
    """A field is a column of a line: some pages of some KV heads of one layer."""

    layers: tuple[int, ...]
    """[line]: layer of the model."""
    n_columns: int
    pages_per_column: int
    heads_per_line: int
    n_pages_used: int
    """Pages up to the last one in use."""
    fields: np.ndarray
    """uint8 [line, column]: place * 16 + level of attention."""


class MapMaker:
    """Draws the maps of one context, and evens out attention from one to the next."""

    def __init__(self) -> None:
        self._layers: list[LayerReport] | None = None  # the served ones: they stay the same
        self._shares: dict[int, np.ndarray] = {}  # by stream, float32 [line, column]

    def draw(self, runtime: Runtime, stream: int) -> PageMap:
        """The map of now. On the thread that decodes, or while nothing does; on a device this waits for it."""
        cells = runtime.cells.stream(stream)
        n_stream_pages = -(-len(cells.positions) // runtime.page_tokens)
        n_used = -(-cells.used_end // runtime.page_tokens)
        n_pages = min(n_stream_pages, max(FEWEST_COLUMNS, 1 << max(0, n_used - 1).bit_length()))
        width = -(-n_pages // MOST_COLUMNS)
        mass = runtime.mass()
        first = stream * (mass.shape[2] // max(1, runtime.cells.n_stream))
        if self._layers is None:
            self._layers = [layer for layer in runtime.layers if layer.row >= 0]
        layers = self._layers
        heads = _heads_per_line([layer.n_head_kv for layer in layers])
        # several pages or heads to a field: summed over blocks
        residency = runtime.residency()
        in_use = _pages_in_use(cells.positions, n_pages, runtime.page_tokens)
        if residency is None:
            state = np.broadcast_to(np.where(in_use, np.uint8(State.HOME), np.uint8(State.FREE)), (*mass.shape[:2], n_pages))
        else:  # the table learns of a new page where a run of the policy ends
            state = residency.state[:, :, first : first + n_pages]
            state = np.where(in_use & (state == State.FREE), np.uint8(State.FILLING), state)
        lines = [(row, head) for row, layer in enumerate(layers) for head in range(0, layer.n_head_kv, heads)]
        at = np.array(lines, np.intp).reshape(-1, 2)
        if width == heads == 1:
            place = _PLACE_OF[state[at[:, 0], at[:, 1]]]
        else:
            place = _places(_blocks(state == State.RESIDENT, at, heads, width), _blocks(state != State.FREE, at, heads, width))
        mass = _blocks(mass[:, :, first : first + n_pages], at, heads, width)
        return PageMap(tuple(layers[row].il for row, _ in lines), place.shape[1], width, heads, n_used,
                       place * np.uint8(16) + np.where(place == EMPTY, np.uint8(0), self._levels(stream, mass, max(1, -(-n_used // width)))))

    def _levels(self, stream: int, mass: np.ndarray, n_columns: int) -> np.ndarray:
        """uint8 [line, column], of float [line, column] with `n_columns` in use: this run of the policy, and those before at half as much
        each."""
        total = mass.sum(axis=1, keepdims=True, dtype=np.float64)
        before = self._shares.get(stream)
        if not total.any():
            shares = np.zeros(mass.shape, np.float32) if before is None or before.shape != mass.shape else before
        else:
            shares = (mass / np.maximum(total, 1e-30)).astype(np.float32)
            if before is not None and before.shape == shares.shape:
                shares = (shares + before) / 2
        self._shares[stream] = shares
        steps = np.log(np.maximum(shares * (n_columns / FAINTEST), 1)) * (LEVELS / np.log(BRIGHTEST / FAINTEST))
        return np.minimum(np.ceil(steps), LEVELS).astype(np.uint8)


def _pages_in_use(positions: np.ndarray, n_pages: int, page_tokens: int) -> np.ndarray:
    """bool [page]: the first pages of a stream that hold a token."""
    in_use = np.zeros(n_pages * page_tokens, bool)
    end = min(len(in_use), len(positions))
    in_use[:end] = positions[:end] >= 0
    return np.asarray(in_use.reshape(n_pages, page_tokens).any(axis=1))


def _heads_per_line(n_heads: list[int]) -> int:
    """So many that the lines are few enough."""
    heads = 1
    while heads < max(n_heads, default=1) and sum(-(-n // heads) for n in n_heads) > MOST_LINES:
        heads *= 2
    return heads


def _blocks(values: np.ndarray, at: np.ndarray, heads: int, width: int) -> np.ndarray:
    """float32 [line, column]: sums of [row, head, page] over `heads` heads from each (row, head) of `at`, and over `width` pages."""
    values = values.astype(np.float32, copy=False)
    if width > 1:
        values = np.add.reduceat(values, np.arange(0, values.shape[2], width), axis=2)
    sums = values[at[:, 0], at[:, 1]]
    for k in range(1, heads):
        inside = at[:, 1] + k < values.shape[1]
        sums[inside] += values[at[inside, 0], at[inside, 1] + k]
    return sums


def _places(n_resident: np.ndarray, n_used: np.ndarray) -> np.ndarray:
    """uint8 [line, column] of the pages of each field."""
    share = n_resident / np.maximum(n_used, 1)
    some = np.uint8(SOME) + np.floor(share * (ALL - SOME)).astype(np.uint8)
    return np.where(n_used == 0, np.uint8(EMPTY), np.where(n_resident == 0, np.uint8(HOME), some)).astype(np.uint8)
