"""Any pages: what a prefetcher has to beat."""

from __future__ import annotations

import numpy as np

from edgekv.observation import Observation, Shape
from edgekv.prefetch.base import Prefetcher, Rope
from edgekv.residency import Residency, State


class RandomPages(Prefetcher):
    """HOME pages drawn evenly, without repetition, from a seed of its own."""

    def __init__(self, shape: Shape, rope: Rope | None):
        super().__init__(shape, rope)
        self._random = np.random.default_rng(0)

    def wanted(self, observation: Observation, residency: Residency, limit: int) -> np.ndarray:
        home = np.flatnonzero(residency.state == State.HOME)
        return self._random.choice(home, min(limit, len(home)), replace=False)
