"""Levels of popularity."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekv.arrays.best import best
from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.base import Policy, at_least
from edgekv.policies.caches.access import AccessSettings

FROM_COUNTS = (1, 5, 10)
"""Counts in a window from which a page belongs to level 1, 2 and 3."""


@dataclass(frozen=True)
class HierarchicalSettings(AccessSettings):
    window_tokens: int = at_least(1, 40)
    """Tokens between two changes of level."""
    n_top: int = at_least(1, 16)
    """The number of pages of a head, those with most mass, that are popular."""


class Hierarchical(Policy):
    """Four levels by popularity: how often a page was among the `n_top` pages with most mass of its head within `window_tokens` tokens:
    10 times and more, 5 to 9, 1 to 4, never. At the end of each window a page moves towards the level of its count by one:

        score = access_mass / 4 * (level + count / (count + window_tokens))

    with the larger of the counts of the last window and of the one that runs, so that a new page is known before its first window
    ends. The source counts tokens; a page counts where the sum of its tokens is among the best. A run of several tokens counts with
    all of them, and a window is that much longer. The source names no number of best; `n_top` is ours.
    """

    settings: HierarchicalSettings
    settings_of = HierarchicalSettings
    scoring = True

    def __init__(self, shape: PageShape, settings: HierarchicalSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._levels, self._last, self._counts = (ops.zeros(shape.axes, np.float32) for _ in range(3))
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

    def forget(self, pages: np.ndarray) -> None:
        super().forget(pages)
        for array in (self._levels, self._last, self._counts):
            self.ops.clear(array, pages)
