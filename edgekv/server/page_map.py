"""A picture of one stream: the place and the attention of its pages, by layer and KV head. Its size is bounded, so that it can be sent
several times a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from edgekv.common.reports import LayerReport
from edgekv.pages.residency import State
from edgekv.runtime.cells import StreamCells, sequences_of

if TYPE_CHECKING:
    from edgekv.runtime.runtime import Runtime

MOST_COLUMNS = 512
MOST_LINES = 256
FEWEST_COLUMNS = 64

EMPTY, HOME, FILLING, MOVING, SOME, ALL = 0, 1, 2, 3, 4, 15
"""Places of a field's pages. SOME to ALL: the share of them that is in the arena."""
_PLACE_OF = np.zeros(len(State), np.uint8)
_PLACE_OF[[State.HOME, State.FILLING, State.MOVING, State.RESIDENT]] = HOME, FILLING, MOVING, ALL

LEVELS = 15
FAINTEST, BRIGHTEST = 0.03, 30.0
"""A field's attention as a multiple of an even share of its line's and slots'. FAINTEST and below is level 0, BRIGHTEST and above is LEVELS; levels
between them are logarithmic."""

Spans = list[tuple[int, list[int]]]
"""(first column, slots): from there on the columns have tokens of these slots. No slots: they are empty."""


class PageMap(Struct, frozen=True):
    """Lines are KV heads of a layer, columns are pages. A field, one column of a line, may represent several of both."""

    layers: tuple[int, ...]
    """[line]: layer of the model."""
    n_columns: int
    pages_per_column: int
    heads_per_line: int
    n_pages_used: int
    """One past the last page in use."""
    fields: np.ndarray
    """uint8 [line, column]: place * 16 + level of attention."""
    n_tokens: int
    """Tokens in the stream's cells; one that several slots share counts once."""
    spans: Spans
    texts: list[tuple[int, int, int]]
    """[column up to the last page in use]: the slot and position of its first token, and its tokens of this slot. Slot -1: it is empty."""


class MapMaker:
    """Draws the maps of one context; smooths attention from one map to the next."""

    def __init__(self) -> None:
        self._layers: list[LayerReport] | None = None  # the served ones, which never change
        self._shares: dict[int, np.ndarray] = {}  # by stream, float32 [line, column]

    def draw(self, runtime: Runtime, stream: int) -> PageMap:
        """The present map. Call it on the decoding thread, or while nothing decodes; on a device this waits for the ubatch."""
        cells = runtime.cells.stream(stream)
        n_stream_pages = -(-len(cells.positions) // runtime.page_tokens)
        n_used = -(-cells.used_end // runtime.page_tokens)
        n_pages = min(n_stream_pages, max(FEWEST_COLUMNS, 1 << max(0, n_used - 1).bit_length()))
        width = -(-n_pages // MOST_COLUMNS)
        mass = runtime.mass()
        first = stream * (mass.shape[2] // max(1, runtime.cells.n_stream))
        if self._layers is None:
            self._layers = [layer for layer in runtime.layers if layer.index >= 0]
        layers = self._layers
        heads = _heads_per_line([layer.n_head_kv for layer in layers])
        residency = runtime.residency()
        n_tokens = _tokens_by_page(cells.positions, n_pages, runtime.page_tokens)
        if residency is None:
            state = np.select([n_tokens == runtime.page_tokens, n_tokens > 0], [np.uint8(State.HOME), np.uint8(State.FILLING)], np.uint8(State.FREE))
            state = np.broadcast_to(state, (*mass.shape[:2], n_pages))
        else:  # the table learns of new pages only at the end of a run of the policy
            state = residency.state[:, :, first : first + n_pages]
            state = np.where((n_tokens > 0) & (state == State.FREE), np.uint8(State.FILLING), state)
        lines = [(index, head) for index, layer in enumerate(layers) for head in range(0, layer.n_head_kv, heads)]
        at = np.array(lines, np.intp).reshape(-1, 2)
        if width == heads == 1:
            place = _PLACE_OF[state[at[:, 0], at[:, 1]]]
        else:
            place = _places(_blocks(state == State.RESIDENT, at, heads, width), _blocks(state != State.FREE, at, heads, width))
        mass = _blocks(mass[:, :, first : first + n_pages], at, heads, width)
        n_columns = max(1, -(-n_used // width))
        spans, texts = conversations(cells, n_columns, width * runtime.page_tokens)
        levels = self._levels(stream, mass, spans, n_columns)
        return PageMap(tuple(layers[index].il for index, _ in lines), place.shape[1], width, heads, n_used,
                       place * np.uint8(16) + np.where(place == EMPTY, np.uint8(0), levels), cells.n_used, spans, texts)

    def _levels(self, stream: int, mass: np.ndarray, spans: Spans, n_columns: int) -> np.ndarray:
        """uint8 [line, column] from mass, float [line, column], with `n_columns` in use. Each earlier run of the policy counts half as much
        as the next. Slots are apart: one that reads a prompt gets hundreds of times the attention of one that answers."""
        before = self._shares.get(stream)
        if before is not None and before.shape[1] < mass.shape[1]:
            before = np.pad(before, ((0, 0), (0, mass.shape[1] - before.shape[1])))
        shares = np.zeros(mass.shape, np.float32)
        owner = _owners(spans, n_columns)
        for number in range(int(owner.max(initial=-1)) + 1):
            mine = np.flatnonzero(owner == number)
            total = mass[:, mine].sum(axis=1, keepdims=True, dtype=np.float64)
            shares[:, mine] = mass[:, mine] / np.maximum(total, 1e-30) * len(mine)
            if before is not None and before.shape == shares.shape:
                shares[:, mine] = (shares[:, mine] + before[:, mine]) / 2 if total.any() else before[:, mine]
        self._shares[stream] = shares
        steps = np.log(np.maximum(shares / FAINTEST, 1)) * (LEVELS / np.log(BRIGHTEST / FAINTEST))
        return np.minimum(np.ceil(steps), LEVELS).astype(np.uint8)


def _owners(spans: Spans, n_columns: int) -> np.ndarray:
    """int [column]: the number of its set of slots."""
    owner, numbers = np.zeros(n_columns, np.intp), dict[tuple[int, ...], int]()
    for column, slots in spans:
        owner[column:] = numbers.setdefault(tuple(slots), len(numbers))
    return owner


def conversations(cells: StreamCells, n_columns: int, n_cells: int) -> tuple[Spans, list[tuple[int, int, int]]]:
    """The spans and texts of a map whose columns have n_cells cells each."""
    bits, positions = cells.sequence_bits[: n_columns * n_cells], cells.positions[: n_columns * n_cells]
    n = len(positions)
    starts = np.arange(0, n, n_cells)
    owners = np.bitwise_or.reduceat(bits, starts, axis=0)  # an empty cell has no sequence
    changes = np.flatnonzero(np.append(True, (owners[1:] != owners[:-1]).any(axis=1)))
    spans = [(int(column), sequences_of(owners[column])) for column in changes]
    found = np.minimum.reduceat(np.where(positions >= 0, np.arange(n), n), starts)  # the first token of each column
    empty = found == n
    found[empty] = 0
    first = np.unpackbits(bits[found].view(np.uint8), axis=1, bitorder="little").argmax(axis=1)
    slot = np.repeat(first, n_cells)[:n]
    n_mine = np.add.reduceat(bits[np.arange(n), slot // 64] >> (slot % 64).astype(np.uint64) & np.uint64(1), starts)
    texts = np.stack([first, positions[found], n_mine.astype(np.intp)], axis=1)
    texts[empty] = -1, 0, 0
    return spans, [(slot, position, n_tokens) for slot, position, n_tokens in texts.tolist()]


def _tokens_by_page(positions: np.ndarray, n_pages: int, page_tokens: int) -> np.ndarray:
    """int [page]: tokens in the first pages of a stream."""
    in_use = np.zeros(n_pages * page_tokens, bool)
    end = min(len(in_use), len(positions))
    in_use[:end] = positions[:end] >= 0
    return np.count_nonzero(in_use.reshape(n_pages, page_tokens), axis=1)


def _heads_per_line(n_heads: list[int]) -> int:
    """A power of two: KV heads to a line, so that there are at most MOST_LINES lines."""
    heads = 1
    while heads < max(n_heads, default=1) and sum(-(-n // heads) for n in n_heads) > MOST_LINES:
        heads *= 2
    return heads


def _blocks(values: np.ndarray, at: np.ndarray, heads: int, width: int) -> np.ndarray:
    """float32 [line, column]: values [layer, head, page], summed over `heads` heads from each (layer, head) of `at` on and over `width` pages."""
    values = values.astype(np.float32, copy=False)
    if width > 1:
        values = np.add.reduceat(values, np.arange(0, values.shape[2], width), axis=2)
    sums = values[at[:, 0], at[:, 1]]
    for k in range(1, heads):
        inside = at[:, 1] + k < values.shape[1]
        sums[inside] += values[at[inside, 0], at[inside, 1] + k]
    return sums


def _places(n_resident: np.ndarray, n_used: np.ndarray) -> np.ndarray:
    """uint8 [line, column]: the place of each field, from the counts of its pages."""
    share = n_resident / np.maximum(n_used, 1)
    some = np.uint8(SOME) + np.floor(share * (ALL - SOME)).astype(np.uint8)
    return np.where(n_used == 0, np.uint8(EMPTY), np.where(n_resident == 0, np.uint8(HOME), some)).astype(np.uint8)
