"""Eviction in one context: the cells that it sees, and the native calls that drop pages."""

import numpy as np

from edgekv._native import core, paging
from edgekv._native.native_pages import moves_of
from edgekv.config import EvictionOptions
from edgekv.hierarchy.eviction import Demand
from edgekv.pages.shape import PageShape
from edgekv.vocab import Split


class NativeEvictor:
    """In mode evict layers drop the pages that they do not keep. A context made for a bound (`n_kept`) stays within it in every mode: there is room
    for the next batch. Call it between ubatches, or in their callback.

    eviction: what mode evict keeps; it may change, and is None in other modes. dropped: `PageArrays.dropped`. n_kept: `core.ContextLimits.n_kept`.
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
        self.eviction = eviction

    def demand(self) -> Demand | None:
        eviction, gone = self.eviction, self._dropped
        if gone is None or eviction is None and not self._n_kept:
            return None
        cells = core.cells(self._handle, 0)
        n_excess = self._excess(cells, eviction is not None and core.limits(self._handle).gives_back) if self._n_kept else 0
        if n_excess <= 0 and eviction is None:
            return None
        positions = np.full(self._shape.n_pages * self._shape.page_tokens, -1, np.int32)
        positions[: cells.n_cells] = cells.positions
        by_page = positions.reshape(self._shape.n_pages, -1)
        n_cells = np.count_nonzero(by_page >= 0, axis=1)
        if eviction is None:
            return Demand(gone, by_page.max(axis=1), n_cells, Split.POOLED, None, n_excess, by_page)
        n_tokens = min(eviction.keep.tokens, self._n_kept - self._n_batch) if self._n_kept else eviction.keep.tokens
        return Demand(gone, by_page.max(axis=1), n_cells, eviction.split, n_tokens // self._shape.page_tokens, n_excess, by_page,
                      n_tokens, self._layer_bytes)

    def _excess(self, cells: core.NativeCells, by_layer: bool) -> int:
        """Cells that must be emptied before the next batch: it needs cells, and their memory if layers do not give it back themselves."""
        for_cells = self._n_batch - (cells.n_cells - cells.n_used)
        return for_cells if by_layer else max(for_cells, cells.n_used + self._n_batch - self._n_kept)

    def drop(self, ids: np.ndarray) -> None:
        paging.drop_pages(self._handle, moves_of(self._shape, ids))

    def free(self, pages: np.ndarray) -> int:
        return paging.free_pages(self._handle, pages)

    def free_cells(self, cells: np.ndarray) -> int:
        return paging.free_cells(self._handle, cells)
