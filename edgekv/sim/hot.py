"""The hot tier of a simulation: which pages are in fast memory, and how many had to be fetched."""

from __future__ import annotations

import numpy as np

from edgekv.kernels.topk import largest
from edgekv.observation import Observation, Shape
from edgekv.prefetch import Prefetcher
from edgekv.residency import Residency, State


class HotTier:
    """bool `hot` [row, head, page]. What is attended becomes hot. With a pool of more than one budget, pages that were hot stay,
    the best of them, until the pool is full: by the policy's scores, and where it has none, by when they were attended last; of
    equal ones the newer page stays. With a pool of one budget only what is attended is hot. The page being filled is written in
    place and is always hot; it is never fetched. Prefetched pages come on top, and stay for the next step as any other hot page
    does."""

    def __init__(self, shape: Shape, pool: float):
        self.shape = shape
        self.pool = pool
        self.hot = np.zeros(shape.axes, bool)
        self.brought = np.zeros(shape.axes, bool)
        """bool [row, head, page]: the pages that the last prefetch made hot."""
        self._attended_at = np.zeros(shape.axes, np.int32) if pool > 1 else None
        self._now = 0

    def admit(self, attended: np.ndarray, n_budget: int, scores: np.ndarray | None) -> np.ndarray:
        """Make the pages of a step hot: bool [row, head, :end]. Returns int [row, head]: how many were not hot before."""
        end = attended.shape[2]
        before = self.hot[:, :, :end]
        fetched = (attended & ~before)[:, :, : end - 1].sum(axis=2)
        kept = attended
        if self._attended_at is not None:
            self._now += 1
            self._attended_at[:, :, :end][attended] = self._now
            left = round(self.pool * n_budget * self.shape.n_existing_heads) - int(np.count_nonzero(attended))
            kept = attended | self._best(before & ~attended, left, self._attended_at if scores is None else scores)
        self.hot[:, :, :end] = kept
        return fetched

    @staticmethod
    def _best(candidates: np.ndarray, n: int, worth: np.ndarray) -> np.ndarray:
        """The n candidates worth most; of equal ones the later page."""
        found = np.flatnonzero(candidates)
        if n >= len(found):
            return candidates
        out = np.zeros(candidates.size, bool)
        # `largest` takes the first of equal ones
        best = largest(worth[:, :, : candidates.shape[2]].reshape(-1)[found][::-1], max(0, n))
        out[found[::-1][best]] = True
        return out.reshape(candidates.shape)

    def prefetch(self, prefetcher: Prefetcher, observation: Observation, limit: int) -> None:
        """Make what a prefetcher wants hot, `limit` pages at most."""
        ids = prefetcher.wanted(observation, self.residency(observation.n_used_end), limit).get()
        self.brought = np.zeros(self.shape.axes, bool)
        self.brought.reshape(-1)[ids] = True
        self.hot |= self.brought

    def residency(self, end: int) -> Residency:
        """As a page table says it: hot pages RESIDENT, the others before `end` HOME, the last of them FILLING."""
        state = np.full(self.shape.axes, State.FREE, np.uint8)
        state[:, :, : end - 1] = np.where(self.hot[:, :, : end - 1], State.RESIDENT, State.HOME)
        state[:, :, end - 1] = State.FILLING
        state[~self.shape.exists] = State.FREE
        return Residency(self.shape, state, np.full(self.shape.axes, -1, np.int32), np.empty(0, np.int64), 0, end)
