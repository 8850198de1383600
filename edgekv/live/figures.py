"""All figures of a context at one moment: taken by the decoding thread, read by any other."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgekv.config import KvOptions
from edgekv.hierarchy.stats import Stats
from edgekv.pages.residency import State
from edgekv.reports import MemoryReport, SelectionReport, TierReport
from edgekv.vocab import KvMode

if TYPE_CHECKING:
    from edgekv.live.runtime import Runtime


@dataclass(frozen=True)
class SequenceFigures:
    """One sequence: what a server calls a slot. A page is one of a layer and KV head; one that several sequences share counts for each."""

    stream: int
    """The stream of its cells; all sequences of a unified cache share stream 0."""
    n_tokens: int
    """In the cache."""
    n_read_sparsely: int
    """Of these, read by a sparse prompt: what their cells hold is approximate."""
    n_arena_pages: int
    """Pages in the arena or on the way there."""
    n_home_pages: int
    """The others, which are only at home."""
    coverage: float | None
    """As `coverage`, of its stream alone."""


@dataclass(frozen=True)
class Figures:
    """`options`, `memory`, `tiers`, `selection` and `stats` as the Runtime reports them."""

    taken: float
    """`time.time()`."""
    options: KvOptions
    n_layers: int
    n_layers_served: int
    n_heads: int
    """KV heads of all served layers."""
    n_context: int
    """Tokens of a sequence, at most."""
    n_positions: int
    """One past the newest position in stream 0."""
    n_tokens: int
    """Computed so far, of prompts and answers."""
    memory: MemoryReport
    tiers: TierReport
    selection: SelectionReport
    stats: Stats
    sequences: tuple[SequenceFigures, ...]

    @property
    def coverage(self) -> float | None:
        """Since the context was attached."""
        return coverage(self.options.mode, self.selection)


def coverage(mode: KvMode, selection: SelectionReport) -> float | None:
    """Share of the attention on the tokens that were read, as `SelectionReport.coverage` estimates it; 1 where everything was read. None without
    sketches and in mode evict, because unread tokens then cannot be estimated."""
    if mode is KvMode.EVICT:
        return None
    return selection.coverage if mode is KvMode.SPARSE and selection.n_selections else 1.0


def collect(runtime: Runtime, n_sequences: int) -> Figures:
    """The figures of now, with those of sequences 0 to n_sequences - 1. On the thread that decodes, or while nothing does."""
    layers = runtime.layers
    served = [layer for layer in layers if layer.hooked]
    n_heads = sum(layer.n_head_kv for layer in served)
    return Figures(
        taken=time.time(), options=runtime.options, n_layers=len(layers), n_layers_served=len(served),
        n_heads=n_heads, n_context=runtime.n_context, n_positions=runtime.n_positions,
        n_tokens=runtime.n_tokens, memory=runtime.memory(), tiers=runtime.tiers(), selection=runtime.selection(), stats=replace(runtime.stats),
        sequences=_sequences(runtime, n_sequences, n_heads))


def _sequences(runtime: Runtime, n_sequences: int, n_heads: int) -> tuple[SequenceFigures, ...]:
    in_arena = _arena_pages(runtime)
    found = []
    for seq_id in range(n_sequences):
        stream = runtime.cells.stream_of(seq_id)
        cells = runtime.cells.stream(stream)
        mine = cells.in_sequence(seq_id)[: cells.used_end]
        n_pages = -(-len(mine) // runtime.page_tokens)
        padded = np.zeros(n_pages * runtime.page_tokens, bool)
        padded[: len(mine)] = mine
        pages = padded.reshape(n_pages, runtime.page_tokens).any(axis=1)
        n_arena = 0
        if in_arena is not None:
            first = stream * (len(in_arena) // max(1, runtime.cells.n_stream))
            n_arena = int(in_arena[first : first + n_pages][pages].sum())
        found.append(SequenceFigures(stream, int(mine.sum()), int(cells.read_sparsely[: len(mine)][mine].sum()), n_arena,
                                     int(pages.sum()) * n_heads - n_arena, _coverage_of_stream(runtime, stream)))
    return tuple(found)


def _coverage_of_stream(runtime: Runtime, stream: int) -> float | None:
    found = runtime.selection(stream)
    if not found.n_selections and runtime.tokens.on_device and runtime.cells.n_stream > 1:
        return None  # its streams are not counted apart
    return coverage(runtime.mode, found)


def _arena_pages(runtime: Runtime) -> np.ndarray | None:
    """int [page]: how many layers and KV heads have the page in the arena; None where nothing has tiers."""
    residency = runtime.residency()
    if residency is None:
        return None
    return np.count_nonzero(residency.state >= State.RESIDENT, axis=(0, 1))
