"""No prefetch."""

from __future__ import annotations

import numpy as np

from edgekv.kernels.order import Later
from edgekv.observation import Observation
from edgekv.prefetch.base import NOTHING, Prefetcher
from edgekv.residency import Residency


class NoPrefetch(Prefetcher):
    """Pages move on their scores alone."""

    def wanted(self, observation: Observation, residency: Residency, limit: int) -> Later[np.ndarray]:
        return NOTHING
