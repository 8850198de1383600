"""The hot tier of a simulation: the pages in fast memory, and the number of fetched ones."""

import numpy as np

from edgekv.pages.observation import Observation
from edgekv.pages.residency import Residency, State
from edgekv.pages.shape import PageShape
from edgekv.tiering.prefetch import Prefetcher


class HotTier:
    """bool `hot` [layer, head, page]. The policy's choice becomes hot, and no other page stays. The page being filled is written in place: it
    is always hot and never fetched. Prefetched pages come on top, and are hot in the next step."""

    def __init__(self, shape: PageShape):
        self.shape = shape
        self.hot = np.zeros(shape.axes, bool)
        self.brought = np.zeros(shape.axes, bool)
        """bool [layer, head, page]: the pages that the last prefetch made hot."""

    def admit(self, chosen: np.ndarray) -> np.ndarray:
        """Make the pages of a step hot: bool [layer, head, :end]. Returns int [layer, head]: the number of newly hot pages."""
        end = chosen.shape[2]
        part = self.hot[:, :, :end]
        fetched = (chosen & ~part)[:, :, : end - 1].sum(axis=2)
        part[...] = chosen
        return fetched

    def prefetch(self, prefetcher: Prefetcher, observation: Observation, limit: int) -> None:
        """Make the pages that a prefetcher wants hot, at most `limit`."""
        ids = prefetcher.wanted(observation, self.residency(observation.n_used_end), limit).get()
        self.brought = np.zeros(self.shape.axes, bool)
        self.brought.reshape(-1)[ids] = True
        self.hot |= self.brought

    def residency(self, end: int) -> Residency:
        """The states of a page table: hot pages RESIDENT, the others before `end` HOME, the last of them FILLING."""
        state = np.full(self.shape.axes, State.FREE, np.uint8)
        state[:, :, : end - 1] = np.where(self.hot[:, :, : end - 1], State.RESIDENT, State.HOME)
        state[:, :, end - 1] = State.FILLING
        state[~self.shape.exists] = State.FREE
        return Residency(self.shape, state, np.full(self.shape.axes, -1, np.int32), np.empty(0, np.int64), 0, end)
