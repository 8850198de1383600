"""Levels of popularity."""

from dataclasses import dataclass

import numpy as np

from edgekv.arrays.best import best
from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.access import AccessSettings
from edgekv.policies.base import Policy, at_least

FROM_COUNTS = (1, 5, 10)
"""The least counts in a window for levels 1, 2 and 3."""


@dataclass(frozen=True)
class HierarchicalSettings(AccessSettings):
    window_tokens: int = at_least(1, 40)
    """Tokens between two changes of level."""
    n_top: int = at_least(1, 16)
    """A head's pages with most mass that count as popular."""


class Hierarchical(Policy):
    """Four levels of popularity. A page's count says how often in `window_tokens` tokens it was among the `n_top` pages with most mass of its
    head; the levels are 10 and more, 5 to 9, 1 to 4 and 0. At the end of each window a page moves one level towards that of its count:

        score = access_mass / 4 * (level + count / (count + window_tokens))

    count is the larger of the last window's and the present one's, so that a new page scores before its first window ends. The source ranks
    tokens; here a page ranks by the sum of its tokens. A run of several tokens counts with all of them, and its window is that much longer.
    The source names no number of best; `n_top` is ours.
    """

    settings: HierarchicalSettings
    settings_of = HierarchicalSettings
    scoring = True

    def __init__(self, shape: PageShape, settings: HierarchicalSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._levels, self._last, self._counts = (self._remember() for _ in range(3))
        self._n_tokens = 0

    def update(self, observation: Observation) -> None:
        if not observation.observed:
            return
        xp, end = self.ops.xp, observation.n_used_end
        levels, last, counts = (array[:, :, :end] for array in (self._levels, self._last, self._counts))
        counts += best(self.ops, observation.mass_sum[:, :, :end], self.settings.n_top) * np.float32(observation.n_tokens)
        self._n_tokens += observation.n_tokens
        if self._n_tokens >= self.settings.window_tokens:
            self._n_tokens = 0
            target = sum((counts >= np.float32(least)) * np.float32(1) for least in FROM_COUNTS[1:]) + (counts >= FROM_COUNTS[0])
            levels += xp.minimum(xp.maximum(target - levels, np.float32(-1)), np.float32(1))
            last[...] = counts
            counts[...] = 0
        count = xp.maximum(last, counts)
        worth = levels + count / (count + np.float32(self.settings.window_tokens))
        xp.multiply(worth, np.float32(self.settings.access_mass / (len(FROM_COUNTS) + 1)), out=self._scores[:, :, :end])
