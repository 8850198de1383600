"""A fixed random order, which any policy has to beat."""

from dataclasses import dataclass

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.base import Policy, Settings, at_least


@dataclass(frozen=True)
class RandomSettings(Settings):
    seed: int = at_least(0, 0)


class Random(Policy):
    """Scores are uniform between 0 and twice the mean mass of a page in use. A page keeps its place in the order until it is forgotten."""

    settings_of = RandomSettings
    scoring = True

    def __init__(self, shape: PageShape, settings: RandomSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._random = np.random.default_rng(settings.seed)
        self._draws = ops.upload(self._random.random(shape.axes, np.float32))

    def update(self, observation: Observation) -> None:
        end = observation.n_used_end
        if end:
            means = np.where(observation.page_positions[:end] >= 0, np.float32(2 / end), np.float32(0))
            self.ops.xp.multiply(self._draws[:, :, :end], self.ops.upload(means), out=self._scores[:, :, :end])

    def forget(self, pages: np.ndarray) -> None:
        super().forget(pages)
        anew = self._random.random((*self.shape.axes[:2], len(pages)), np.float32)
        self._draws[:, :, self.ops.upload(pages)] = self.ops.upload(anew)
