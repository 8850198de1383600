"""Least recently used."""

from typing import Any

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.access import AccessSettings
from edgekv.policies.base import Policy


class Lru(Policy):
    """score = access_mass / (1 + tokens since the last access of the page), 0 without one. An access is a mass above access_mass per token.
    The order is LRU's, the scale is mass per token."""

    settings_of = AccessSettings
    scoring = True

    def __init__(self, shape: PageShape, settings: AccessSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._accessed = ops.zeros(shape.axes, bool)
        self._scratch = ops.zeros(shape.axes, np.float32)
        self._weight: Any = np.float32(settings.access_mass)

    def update(self, observation: Observation) -> None:
        if not observation.observed:
            return
        xp, end, n = self.ops.xp, observation.n_used_end, observation.n_tokens
        scores, accessed = self._scores[:, :, :end], self._accessed[:, :, :end]
        # w / (1 + age + n) = s / (1 + n s / w) for s = w / (1 + age): 0 stays 0, and no clock grows
        aged = xp.multiply(scores, np.float32(n / max(self._weight, 1e-30)), out=self._scratch[:, :, :end])
        aged += np.float32(1)
        scores /= aged
        xp.greater(observation.mass_sum[:, :, :end], self._weight * np.float32(n), out=accessed)
        xp.copyto(scores, self._weight, where=accessed)
