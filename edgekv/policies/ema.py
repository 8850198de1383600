"""Exponential moving average of attention mass, for each head on its own."""

from __future__ import annotations

import math

import numpy as np

from edgekv.kernels.ema import ema, flush, scratch_elements
from edgekv.observation import Observation, Shape
from edgekv.policies.base import Policy, Settings

_LEAST = 1e-25
"""A score below it is as good as none ..."""
_DECAY = 1e-10
"""... and so much a score decays at most between two looks: it never becomes denormal (1e-38)."""


class Ema(Policy):
    """score = alpha * mass + (1 - alpha) * score, on the mass summed over the query heads of the group."""

    scoring = True

    def __init__(self, shape: Shape, settings: Settings):
        super().__init__(shape, settings)
        self._scratch = np.empty(scratch_elements(shape.axes), np.float32)
        alpha = settings.alpha
        self._flush_tokens = 1 if alpha == 1 else max(1, int(math.log(_DECAY) / math.log(1 - alpha)))
        self._n_tokens = 0

    def update(self, observation: Observation) -> None:
        if not observation.observed:
            return
        end = observation.n_used_end
        scores = self._scores[:, :, :end]
        ema(scores, observation.mass_sum[:, :, :end], self.settings.alpha, observation.n_tokens, self._scratch)
        self._n_tokens += observation.n_tokens
        if self._n_tokens >= self._flush_tokens:
            self._n_tokens = 0
            flush(scores, _LEAST)
