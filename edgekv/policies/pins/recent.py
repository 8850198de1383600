"""The newest pages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.age import within
from edgekv.policies.base import Policy, Settings, at_least


@dataclass(frozen=True)
class RecentSettings(Settings):
    recent_tokens: int = at_least(0, 64)
    """Pages with one of this many newest positions are pinned."""


class Recent(Policy):
    """Pins the pages with one of the `recent_tokens` newest positions of their stream."""

    settings: RecentSettings
    settings_of = RecentSettings

    def __init__(self, shape: PageShape, settings: RecentSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._pins = np.zeros(shape.n_pages, bool)

    @property
    def pins(self) -> np.ndarray:
        return self._pins

    def update(self, observation: Observation) -> None:
        self._pins = within(self.shape, observation, self.settings.recent_tokens)
