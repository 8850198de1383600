"""All figures of a context at one moment: the decoding thread takes them, any thread reads them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from edgekv.common.enums import KvMode
from edgekv.common.reports import MemoryReport, SelectionReport, TierReport
from edgekv.config import KvOptions
from edgekv.pages.residency import State
from edgekv.tiering.stats import Stats

if TYPE_CHECKING:
    from edgekv.runtime.runtime import Runtime


class SequenceFigures(Struct, frozen=True):
    """One sequence, which a server calls a slot. Pages count per layer and KV head; a shared page counts for each sequence."""

    stream: int
    """The stream of its cells; all sequences of a unified cache share stream 0."""
    n_tokens: int
    """Tokens in the cache."""
    n_positions: int
    """One past its newest position: its length, dropped tokens included."""
    n_held: float
    """Tokens whose rows are in memory, mean of the layers; fewer than `n_tokens` where layers of mode evict gave some back."""
    n_read_sparsely: int
    """Those of them that a sparse prompt read: their cells are approximate."""
    n_arena_pages: int
    """Pages in the arena or on the way there."""
    n_home_pages: int
    """Pages at home only, without those that mode evict dropped."""
    coverage: float | None
    """`coverage` of its tokens alone; None on a device, which does not count several sequences apart."""


class Figures(Struct, frozen=True):
    """`options`, `memory`, `tiers`, `selection` and `stats` as the Runtime reports them."""

    taken: float
    """`time.time()`."""
    options: KvOptions
    n_layers: int
    n_layers_served: int
    n_heads: int
    """KV heads of all served layers."""
    n_context: int
    """Most tokens of a sequence."""
    n_tokens: int
    """Tokens of prompts and answers computed so far."""
    memory: MemoryReport
    tiers: TierReport
    selection: SelectionReport
    stats: Stats
    sequences: tuple[SequenceFigures, ...]

    @property
    def coverage(self) -> float | None:
        """`coverage` since the context was attached."""
        return coverage(self.options.mode, self.selection)


def coverage(mode: KvMode, selection: SelectionReport) -> float | None:
    """Share of the attention on the tokens that were read, as `SelectionReport.coverage` estimates it; 1 where everything was read. None in
    mode evict: unread tokens then cannot be estimated."""
    if mode is KvMode.EVICT:
        return None
    return selection.coverage if mode is KvMode.SPARSE and selection.n_selections else 1.0


def collect(runtime: Runtime, n_sequences: int) -> Figures:
    """The present figures, with those of sequences 0 to n_sequences - 1. Call it on the decoding thread, or while nothing decodes."""
    layers = runtime.layers
    served = [layer for layer in layers if layer.hooked]
    n_heads = sum(layer.n_head_kv for layer in served)
    return Figures(
        taken=time.time(), options=runtime.options, n_layers=len(layers), n_layers_served=len(served),
        n_heads=n_heads, n_context=runtime.n_context, n_tokens=runtime.n_tokens, memory=runtime.memory(), tiers=runtime.tiers(),
        selection=runtime.selection(), stats=replace(runtime.stats),
        sequences=_sequences(runtime, n_sequences, n_heads))


def _sequences(runtime: Runtime, n_sequences: int, n_heads: int) -> tuple[SequenceFigures, ...]:
    if not runtime.cells.known:
        return (SequenceFigures(0, 0, 0, 0, 0, 0, 0, None),) * n_sequences
    residency, gone = runtime.residency(), runtime.cells.dropped()
    in_arena = None if residency is None else np.count_nonzero(residency.state >= State.RESIDENT, axis=(0, 1))  # int [page]: in how many heads of layers
    found = []
    for seq_id in range(n_sequences):
        stream = runtime.cells.stream_of(seq_id)
        cells = runtime.cells.stream(stream)
        mine = cells.in_sequence(seq_id)[: cells.used_end]
        n_pages = -(-len(mine) // runtime.page_tokens)
        padded = np.zeros(n_pages * runtime.page_tokens, bool)
        padded[: len(mine)] = mine
        by_page = padded.reshape(n_pages, runtime.page_tokens).sum(axis=1)
        pages, n_tokens = by_page > 0, int(mine.sum())
        n_arena, n_dropped, n_held = 0, 0, float(n_tokens)
        if in_arena is not None:
            first = stream * (len(in_arena) // max(1, runtime.cells.n_stream))
            n_arena = int(in_arena[first : first + n_pages][pages].sum())
        if gone is not None:
            first = stream * (gone.shape[2] // max(1, runtime.cells.n_stream))
            by_heads = np.count_nonzero(gone[:, :, first : first + n_pages][:, :, pages], axis=(0, 1))
            n_dropped = int(by_heads.sum())
            n_held -= float(by_heads @ by_page[pages]) / max(1, n_heads) if runtime.cells.gives_back else 0.0
        found.append(SequenceFigures(
            stream, n_tokens, int(cells.positions[: len(mine)][mine].max(initial=-1)) + 1, n_held,
            int(cells.read_sparsely[: len(mine)][mine].sum()), n_arena, int(pages.sum()) * n_heads - n_arena - n_dropped,
            _coverage_of(runtime, seq_id, n_sequences)))
    return tuple(found)


def _coverage_of(runtime: Runtime, seq_id: int, n_sequences: int) -> float | None:
    found = runtime.selection(seq_id)
    if not found.n_selections and runtime.tokens.on_device and n_sequences > 1:
        return None  # a device does not count sequences apart
    return coverage(runtime.mode, found)
