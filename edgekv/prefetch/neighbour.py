"""The pages beside the hottest."""

from __future__ import annotations

import numpy as np

from edgekv.kernels.topk import largest
from edgekv.observation import Observation
from edgekv.prefetch.base import Prefetcher, only_home
from edgekv.residency import Residency


class Neighbour(Prefetcher):
    """Beside each of the `limit` pages with most attention mass in the last step, the next page and the one before: text that is
    attended tends to be read on. In the same row, head and stream."""

    def wanted(self, observation: Observation, residency: Residency, limit: int) -> np.ndarray:
        end = observation.n_used_end
        if not observation.observed or not end:
            return np.empty(0, np.int64)
        mass = observation.mass_sum[:, :, :end].reshape(-1)
        hot = largest(mass, limit)
        hot = self.shape.widen(hot[mass[hot] > 0], end)
        at = hot % self.shape.pages_per_stream  # streams begin at multiples of it, and so do heads
        beside = np.stack((np.where(at + 1 < self.shape.pages_per_stream, hot + 1, -1), np.where(at > 0, hot - 1, -1)), axis=1)
        beside = beside[beside >= 0]
        _, first = np.unique(beside, return_index=True)  # two hot pages may share a neighbour
        return only_home(beside[np.sort(first)], residency, limit)
