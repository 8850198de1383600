"""Exponential moving average of attention mass, for each head on its own."""

from __future__ import annotations

import numpy as np

from edgekv.kernels.ema import ema
from edgekv.observation import Observation, Shape
from edgekv.policies.base import Policy, Settings


class Ema(Policy):
    """score = alpha * mass + (1 - alpha) * score, on the mass summed over the query heads of the group."""

    scoring = True

    def __init__(self, shape: Shape, settings: Settings):
        super().__init__(shape, settings)
        self._scratch = np.empty(shape.axes, np.float32)

    def update(self, observation: Observation) -> None:
        if observation.observed:
            end = observation.n_used_end
            ema(self._scores[:, :, :end], observation.mass_sum[:, :, :end], self.settings.alpha, observation.n_tokens,
                self._scratch[:, :, :end])
