"""The hot tier of a simulation: which pages are in fast memory, and how many had to be fetched."""

import numpy as np

from edgekv.pages.observation import Observation
from edgekv.pages.residency import Residency, State
from edgekv.pages.shape import PageShape
from edgekv.prefetch import Prefetcher


class HotTier:
    """bool `hot` [layer, head, page]. What the policy chooses becomes hot, and nothing else stays. The page being filled is written in place
    and is always hot; it is never fetched. Prefetched pages come on top, and are hot in the next step."""

    def __init__(self, shape: PageShape):
        self.shape = shape
        self.hot = np.zeros(shape.axes, bool)
        self.brought = np.zeros(shape.axes, bool)
        """bool [layer, head, page]: the pages that the last prefetch made hot."""

    def admit(self, chosen: np.ndarray) -> np.ndarray:
        """Make the pages of a step hot: bool [layer, head, :end]. Returns int [layer, head]: how many were not hot before."""
        end = chosen.shape[2]
        part = self.hot[:, :, :end]
        fetched = (chosen & ~part)[:, :, : end - 1].sum(axis=2)
        part[...] = chosen
        return fetched

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
