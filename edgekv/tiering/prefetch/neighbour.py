"""The pages beside the hottest."""

import numpy as np

from edgekv.arrays.order import Later
from edgekv.arrays.rank import Top
from edgekv.pages.observation import Observation
from edgekv.pages.residency import Residency
from edgekv.tiering.prefetch.prefetcher import NOTHING, Prefetcher, only_home


class Neighbour(Prefetcher):
    """The next and the previous page of each of the `limit` pages with most attention mass in the last run, in the same layer, head and stream:
    a text that is attended tends to be read on."""

    def wanted(self, observation: Observation, residency: Residency, limit: int) -> Later[np.ndarray]:
        if not observation.observed:
            return NOTHING
        hottest = self.ops.top(observation.mass_sum, observation.n_used_end, limit)
        return hottest.then(lambda top: only_home(self._beside(top), residency, limit))

    def _beside(self, top: Top) -> np.ndarray:
        hot, n = top.ids, self.shape.pages_per_stream
        at = hot % n  # streams and heads begin at multiples of n
        beside = np.stack((np.where(at + 1 < n, hot + 1, -1), np.where(at > 0, hot - 1, -1)), axis=1)
        beside = beside[beside >= 0]
        _, first = np.unique(beside, return_index=True)  # two hot pages may share a neighbour
        return beside[np.sort(first)]
