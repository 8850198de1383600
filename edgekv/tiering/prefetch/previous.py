"""The pages attended last."""

import numpy as np

from edgekv.arrays.order import Later
from edgekv.pages.observation import Observation
from edgekv.pages.residency import Residency, State
from edgekv.tiering.prefetch.prefetcher import NOTHING, Prefetcher


class Previous(Prefetcher):
    """The HOME pages with most attention mass in the last run: successive tokens attend much the same pages."""

    def wanted(self, observation: Observation, residency: Residency, limit: int) -> Later[np.ndarray]:
        if not observation.observed:
            return NOTHING
        best = self.ops.top(observation.mass_sum, observation.n_used_end, limit, residency.state, State.HOME)
        return best.then(lambda top: top.ids)
