"""What a step attends: the selection of `edgekv.kernels.select`, for all rows and heads at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekv import budgets
from edgekv.observation import Shape
from edgekv.policies import Policy
from edgekv.sim.setting import Setting
from edgekv.trace import TraceStep
from edgekv.vocab import Split


def split_of(setting: Setting, policy: Policy) -> Split:
    """How the budget is divided: as asked for, else as in the policy's source, else pooled with a sketch and uniform without."""
    if setting.split is not None:
        return setting.split
    if policy.split is not None:
        return policy.split
    return Split.POOLED if setting.sketch else Split.UNIFORM


@dataclass(frozen=True)
class Selected:
    attended: np.ndarray
    """bool [row, head, :n_used_end]."""
    n_budget: int
    """Pages for each head on average that were allowed."""


class Selector:
    """Selects by a policy's scores, a sketch's estimates, or both."""

    def __init__(self, shape: Shape, setting: Setting, policy: Policy):
        self._shape, self._setting, self._policy = shape, setting, policy
        self.split = split_of(setting, policy)

    def value(self, step: TraceStep) -> np.ndarray:
        """float32 [row, head, :n_used_end]: what each page is worth."""
        end, scores = step.n_used_end, self._policy.scores
        part = np.s_[:, :, :end]
        if self._setting.sketch is None:
            return np.zeros((*self._shape.axes[:2], end), np.float32) if scores is None else scores[part]
        blend = np.float32(self._setting.blend)
        value = (1 - blend) * step.estimates[self._setting.sketch][part]
        if scores is not None and blend:
            value += blend * scores[part]
        return value

    def select(self, step: TraceStep) -> Selected:
        """The pages of the policy's pins and the one being filled, then the most valuable ones up to the budget."""
        setting, end = self._setting, step.n_used_end
        pins = self._policy.pins
        always = np.zeros(end, bool) if pins is None else pins[..., :end].copy()
        always[..., end - 1] = True
        n_budget = setting.n_budget(end, self._shape.page_tokens)
        n_kept = min(self._policy.most(n_budget), end)
        value, visible = self.value(step), np.True_
        attended = budgets.divide(self.split, value, always, visible, n_kept, self._shape.exists)
        if setting.coverage:
            attended &= budgets.cover(value, always, visible, setting.coverage)
        return Selected(attended, n_budget)
