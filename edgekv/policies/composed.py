"""Several policies as one."""

from functools import reduce

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.base import Policy, Settings


class Composed(Policy):
    """Scores add, pins unite. The first member with a split sets the split. If one member's scores add up over heads, all do. If one member needs
    an input, all get it."""

    def __init__(self, shape: PageShape, ops: Ops, members: list[Policy], scores: Array | None = None):
        super().__init__(shape, Settings(), ops)
        self.members = members
        scoring = [member for member in members if member.scoring]
        self.scoring = bool(scoring)
        self.adds_up = any(member.adds_up for member in members)
        self.split = next((member.split for member in members if member.split is not None), None)
        self.clairvoyant = any(member.clairvoyant for member in members)
        of_members = [array for member in scoring if (array := member.scores) is not None]
        self._added = of_members if len(of_members) > 1 else []
        if self._added:
            self._scores = self._remember(scores)
        elif of_members:
            self._scores = of_members[0]  # nothing to add up

    @property
    def pins(self) -> np.ndarray | None:
        pins = [pins for member in self.members if (pins := member.pins) is not None]
        return reduce(np.logical_or, pins) if pins else None

    @property
    def sinks(self) -> int | None:
        """Of a policy that stands alone: others may want pages that are neither first nor new."""
        return self.members[0].sinks if len(self.members) == 1 else None

    def update(self, observation: Observation) -> None:
        for member in self.members:
            member.update(observation)
        if self._added:
            part = np.s_[:, :, : observation.n_used_end]
            total, first, *others = self._scores[part], *(scores[part] for scores in self._added)
            self.ops.xp.add(first, others[0], out=total)
            for scores in others[1:]:
                total += scores

    def most(self, n_budget: int) -> int:
        """The largest `most` of the members with scores; pins count within the budget."""
        return max((member.most(n_budget) for member in self.members if member.scoring), default=n_budget)

    def forget(self, pages: np.ndarray) -> None:
        super().forget(pages)
        for member in self.members:
            member.forget(pages)
