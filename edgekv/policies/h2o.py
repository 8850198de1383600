"""Heavy hitters and the newest."""

from dataclasses import dataclass

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.common.enums import Split
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.age import newest, within
from edgekv.policies.base import Policy, Settings, at_least


@dataclass(frozen=True)
class H2OSettings(Settings):
    recent_tokens: int = at_least(0, 64)
    """Newest tokens that are pinned if the budget is unknown."""


class H2O(Policy):
    """H2O, "Heavy-Hitter Oracle for Efficient Generative Inference" (arXiv:2306.14048): in each head half of the budget is for the newest
    tokens, which are pinned, and half for the tokens with most accumulated attention:

        score = sum over tokens of mass / tokens observed

    The division keeps the order and gives mass per token. A page has the sum of its tokens, so that one heavy token keeps its neighbours.
    The source accumulates over the whole prompt; here observed tokens count. Where the budget is not known, `recent_tokens` are pinned.
    Several streams in use share the newest half evenly.
    """

    settings: H2OSettings
    settings_of = H2OSettings
    scoring = True
    split = Split.UNIFORM

    def __init__(self, shape: PageShape, settings: H2OSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._sums = self._remember()
        self._n_tokens = 0

    def update(self, observation: Observation) -> None:
        """Pins follow positions, even if no mass was observed."""
        self._pins = within(self.shape, observation, self._recent_tokens(observation))
        if not observation.observed:
            return
        end = observation.n_used_end
        self._n_tokens += observation.n_tokens
        sums = self._sums[:, :, :end]
        sums += observation.mass_sum[:, :, :end]
        self.ops.xp.multiply(sums, np.float32(1 / self._n_tokens), out=self._scores[:, :, :end])

    def _recent_tokens(self, observation: Observation) -> int:
        if not observation.n_budget:
            return self.settings.recent_tokens
        n_in_use = int((newest(self.shape, observation) >= 0).sum())
        return observation.n_budget * self.shape.page_tokens // (2 * max(1, n_in_use))
