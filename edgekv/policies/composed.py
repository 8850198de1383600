"""Several policies as one."""

from __future__ import annotations

from functools import reduce

import numpy as np

from edgekv.observation import Observation, Shape
from edgekv.policies.base import Policy, Settings


class Composed(Policy):
    """Scores add, pins unite."""

    def __init__(self, shape: Shape, settings: Settings, members: list[Policy]):
        super().__init__(shape, settings)
        self.members = members
        scoring = [member for member in members if member.scoring]
        self._added = scoring if len(scoring) > 1 else []
        self.scoring = bool(scoring)
        if self._added:
            self._scores = np.zeros(shape.axes, np.float32)
        elif scoring:
            self._scores = scoring[0].scores  # the same array: nothing to add up

    @property
    def pins(self) -> np.ndarray | None:
        pins = [pins for member in self.members if (pins := member.pins) is not None]
        return reduce(np.logical_or, pins) if pins else None

    def update(self, observation: Observation) -> None:
        for member in self.members:
            member.update(observation)
        if self._added:
            part = np.s_[:, :, : observation.n_used_end]
            np.copyto(self._scores[part], self._added[0].scores[part])
            for member in self._added[1:]:
                self._scores[part] += member.scores[part]

    def forget(self, pages: np.ndarray) -> None:
        super().forget(pages)
        for member in self.members:
            member.forget(pages)
