"""No prefetch."""

import numpy as np

from edgekv.arrays.order import Later
from edgekv.pages.observation import Observation
from edgekv.pages.residency import Residency
from edgekv.tiering.prefetch.prefetcher import NOTHING, Prefetcher


class NoPrefetch(Prefetcher):
    """Pages move on their scores alone."""

    def wanted(self, observation: Observation, residency: Residency, limit: int) -> Later[np.ndarray]:
        return NOTHING
