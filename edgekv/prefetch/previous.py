"""What was attended in the last step."""

from __future__ import annotations

import numpy as np

from edgekv.kernels.topk import largest
from edgekv.observation import Observation
from edgekv.prefetch.base import Prefetcher
from edgekv.residency import Residency, State


class Previous(Prefetcher):
    """The HOME pages with most attention mass in the last step: neighbouring tokens attend much the same pages."""

    def wanted(self, observation: Observation, residency: Residency, limit: int) -> np.ndarray:
        end = observation.n_used_end
        if not observation.observed or not end:
            return np.empty(0, np.int64)
        mass = observation.mass_sum[:, :, :end]
        misses = np.flatnonzero((residency.state[:, :, :end] == State.HOME) & (mass > 0))
        best = misses[largest(mass.reshape(-1)[misses], limit)]
        return self.shape.widen(best, end)
