"""The attention of the newest token."""

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.common.enums import Split
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.base import Policy, Settings


class Tova(Policy):
    """TOVA, "Transformers are Multi-State RNNs" (arXiv:2401.06104): the tokens that the newest token attends least go first. The source's
    default averages over all heads of a layer, so that these keep the same tokens:

        score = mean over the layer's KV heads of the newest run's mass

    Nothing is remembered: a page that was not attended has 0, and stays away as if it were dropped. A page has the sum of its tokens, a run
    of several tokens their mean.
    """

    scoring = True
    split = Split.UNIFORM

    def __init__(self, shape: PageShape, settings: Settings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        shares = shape.exists / np.maximum(shape.exists.sum(axis=1, keepdims=True), 1)
        self._shares = ops.upload(shares.astype(np.float32)[:, :, None])

    def update(self, observation: Observation) -> None:
        if not observation.observed:
            return
        xp, end = self.ops.xp, observation.n_used_end
        total = xp.sum(observation.mass_sum[:, :, :end], axis=1, keepdims=True) * np.float32(1 / observation.n_tokens)
        xp.multiply(total, self._shares, out=self._scores[:, :, :end])
