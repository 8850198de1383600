"""Exponential moving average of attention mass, for each head on its own."""

import math
from dataclasses import dataclass

from edgekv.arrays.moving_average import weights
from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.base import Policy, Settings, number

_LEAST = 1e-25
"""Scores below this become 0 ..."""
_DECAY = 1e-10
"""... often enough: between two flushes a score decays by this factor at most, so that none becomes denormal (1e-38)."""


@dataclass(frozen=True)
class EmaSettings(Settings):
    alpha: float = number(0.1, lambda alpha: 0 < alpha <= 1, "above 0 and at most 1")
    """Weight of the newest token."""


class Ema(Policy):
    """score = alpha * mass + (1 - alpha) * score, on the mass summed over the query heads of the group."""

    settings: EmaSettings
    settings_of = EmaSettings
    kernels_only = True
    scoring = True
    adds_up = True

    def __init__(self, shape: PageShape, settings: EmaSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        alpha = settings.alpha
        self._flush_tokens = 1 if alpha == 1 else max(1, int(math.log(_DECAY) / math.log(1 - alpha)))
        self._n_tokens = 0

    def update(self, observation: Observation) -> None:
        if observation.observed:
            self.take(observation.mass_sum, observation.n_used_end, observation.n_tokens)

    def take(self, mass: Array, end: int, n_tokens: int) -> None:
        """Take in the mass of a run of n_tokens, on the pages before `end`."""
        self._n_tokens += n_tokens
        look = self._n_tokens >= self._flush_tokens
        if look:
            self._n_tokens = 0
        self.ops.ema(self._scores, mass, end, *weights(self.settings.alpha, n_tokens), least=_LEAST if look else 0.0)
