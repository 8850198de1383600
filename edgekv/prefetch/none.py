"""No prefetch."""

from __future__ import annotations

import numpy as np

from edgekv.observation import Observation
from edgekv.prefetch.base import Prefetcher
from edgekv.residency import Residency


class NoPrefetch(Prefetcher):
    """Pages move on their scores alone."""

    def wanted(self, observation: Observation, residency: Residency, limit: int) -> np.ndarray:
        return np.empty(0, np.int64)
