"""Eviction in one context: the cells that it sees, and the native calls that drop pages."""

import numpy as np

from edgekv._native import core, paging
from edgekv._native.native_pages import moves_of
from edgekv.config import EvictionOptions
from edgekv.hierarchy.eviction import Demand
from edgekv.pages.shape import PageShape
from edgekv.vocab import Split


class NativeEvictor:
    """In mode evict heads drop the pages that they do not keep. A context with fewer cells than tokens (`is_bounded`) frees the worst pages
    in every mode, to make room for the next batch. Call it between ubatches, or in their callback.

    eviction: what mode evict keeps; it may change, and is None in other modes. dropped: `PageArrays.dropped`.
    """

    def __init__(self, handle: core.Handle, shape: PageShape, dropped: np.ndarray | None, eviction: EvictionOptions | None,
                 is_bounded: bool):
        self._handle = handle
        self._shape = shape
        self._dropped = dropped
        self._is_bounded = is_bounded
        self._n_batch = core.limits(handle).n_batch
        self.eviction = eviction

    def demand(self) -> Demand | None:
        eviction, gone = self.eviction, self._dropped
        if gone is None or eviction is None and not self._is_bounded:
            return None
        cells = core.cells(self._handle, 0)
        n_excess = self._n_batch - (cells.n_cells - cells.n_used) if self._is_bounded else 0
        if n_excess <= 0 and eviction is None:
            return None
        positions = np.full(self._shape.n_pages * self._shape.page_tokens, -1, np.int32)
        positions[: cells.n_cells] = cells.positions
        by_page = positions.reshape(self._shape.n_pages, -1)
        n_cells = np.count_nonzero(by_page >= 0, axis=1)
        if eviction is None:
            return Demand(gone, by_page.max(axis=1), n_cells, Split.POOLED, None, n_excess, by_page)
        n_keep = eviction.keep.tokens // self._shape.page_tokens
        return Demand(gone, by_page.max(axis=1), n_cells, eviction.split, n_keep, n_excess, by_page, eviction.keep.tokens)

    def drop(self, ids: np.ndarray) -> None:
        paging.drop_pages(self._handle, moves_of(self._shape, ids))

    def free(self, pages: np.ndarray) -> int:
        return paging.free_pages(self._handle, pages)

    def free_cells(self, cells: np.ndarray) -> int:
        return paging.free_cells(self._handle, cells)
