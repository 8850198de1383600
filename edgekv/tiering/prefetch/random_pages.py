"""Random pages, which any prefetcher has to beat."""

import numpy as np

from edgekv.arrays.ops import Ops
from edgekv.arrays.order import Later
from edgekv.pages.observation import Observation
from edgekv.pages.residency import Residency, State
from edgekv.pages.shape import PageShape
from edgekv.tiering.prefetch.prefetcher import Prefetcher, Rope


class RandomPages(Prefetcher):
    """HOME pages drawn evenly, without repetition, with a fixed seed."""

    def __init__(self, shape: PageShape, rope: Rope | None, ops: Ops):
        super().__init__(shape, rope, ops)
        self._random = np.random.default_rng(0)

    def wanted(self, observation: Observation, residency: Residency, limit: int) -> Later[np.ndarray]:
        home = np.flatnonzero(residency.state == State.HOME)
        return Later.now(self._random.choice(home, min(limit, len(home)), replace=False))
