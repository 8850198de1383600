"""Eviction in one context: the cells that it sees, and the native calls that drop pages."""

import numpy as np

from edgekv._native import core, native_arrays, paging
from edgekv._native.native_pages import moves_of
from edgekv.common.enums import Split
from edgekv.config import EvictionOptions
from edgekv.pages.shape import PageShape
from edgekv.tiering.eviction import Demand


class NativeEvictor:
    """In mode evict layers drop the pages that they do not keep. Each stream holds one sequence, and loses pages of its own alone. In a context made
    for a bound (`n_kept`) each stays within it in every mode: there is room for the next batch. Call it between ubatches, or in their callback.

    eviction: what mode evict keeps; it may change, and is None in other modes. dropped: `PageArrays.dropped`. n_kept: `edgekv_limits.n_kept`.
    layer_bytes: `Demand.layer_bytes`.
    """

    def __init__(self, handle: core.Handle, shape: PageShape, dropped: np.ndarray | None, eviction: EvictionOptions | None, n_kept: int,
                 layer_bytes: np.ndarray | None = None):
        self._handle = handle
        self._shape = shape
        self._dropped = dropped
        self._n_kept = n_kept
        self._layer_bytes = layer_bytes
        self._n_batch = core.limits(handle).n_batch
        self._eviction = eviction
        self._settled: dict[int, int] = {}  # by stream: clock time of the last decision

    @property
    def eviction(self) -> EvictionOptions | None:
        return self._eviction

    @eviction.setter
    def eviction(self, eviction: EvictionOptions | None) -> None:
        self._eviction = eviction
        self._settled.clear()

    def demands(self) -> list[Demand]:
        return [demand for stream in range(self._shape.n_streams) if (demand := self._demand(stream)) is not None]

    def _demand(self, stream: int) -> Demand | None:
        """None: nothing has to go, or the stream's tokens are those of the last decision."""
        eviction, gone = self._eviction, self._dropped
        if gone is None or eviction is None and not self._n_kept:
            return None
        cells = native_arrays.cells(self._handle, stream)
        n_excess = self._excess(cells, eviction is not None and core.limits(self._handle).gives_back) if self._n_kept else 0
        if n_excess <= 0 and (eviction is None or self._settled.get(stream) == cells.now):
            return None
        self._settled[stream] = cells.now
        shape = self._shape
        positions = np.full((shape.n_pages, shape.page_tokens), -1, np.int32)
        pages = slice(stream * shape.pages_per_stream, (stream + 1) * shape.pages_per_stream)
        positions[pages].reshape(-1)[: cells.n_cells] = cells.positions
        newest, n_cells = np.full(shape.n_pages, -1, np.int32), np.zeros(shape.n_pages, np.int64)
        newest[pages] = positions[pages].max(axis=1)
        n_cells[pages] = np.count_nonzero(positions[pages] >= 0, axis=1)
        if eviction is None:
            return Demand(gone, newest, n_cells, Split.POOLED, None, n_excess, positions)
        n_tokens = min(eviction.evict_to.tokens, self._n_kept - self._n_batch) if self._n_kept else eviction.evict_to.tokens
        return Demand(gone, newest, n_cells, eviction.split, n_tokens // shape.page_tokens, n_excess, positions, n_tokens, self._layer_bytes)

    def _excess(self, cells: native_arrays.NativeCells, by_layer: bool) -> int:
        """Cells of a stream that must be emptied before the next batch: it needs cells, and their memory if layers do not give it back themselves."""
        for_cells = self._n_batch - (cells.n_cells - cells.n_used)
        return for_cells if by_layer else max(for_cells, cells.n_used + self._n_batch - self._n_kept)

    def drop(self, ids: np.ndarray) -> None:
        paging.drop_pages(self._handle, moves_of(self._shape, ids))

    def free(self, pages: np.ndarray) -> int:
        return paging.free_pages(self._handle, pages)

    def free_cells(self, cells: np.ndarray) -> int:
        return paging.free_cells(self._handle, cells)
