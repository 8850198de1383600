"""One moving average for all heads of a layer."""

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.base import Policy
from edgekv.policies.ema import Ema, EmaSettings


class EmaAny(Policy):
    """An EMA for a whole layer: a page has one score for all heads, and survives if any head needs it:

        score = alpha * (maximum over the KV heads of mass) + (1 - alpha) * score,  the same for all heads

    In a run of several tokens the maximum is that of their sums.
    """

    settings_of = EmaSettings
    scoring = True

    def __init__(self, shape: PageShape, settings: EmaSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        one = PageShape(shape.n_layers, 1, shape.n_pages, shape.page_tokens, shape.pages_per_stream)
        self._of_layer = ops.zeros(one.axes, np.float32)
        self._ema = Ema(one, settings, ops, self._of_layer)
        self._mass = ops.zeros(one.axes, np.float32)
        self._exists = ops.upload(shape.exists.astype(np.float32)[:, :, None])

    def update(self, observation: Observation) -> None:
        if not observation.observed:
            return
        xp, end = self.ops.xp, observation.n_used_end
        xp.max(observation.mass_sum[:, :, :end], axis=1, keepdims=True, out=self._mass[:, :, :end])
        self._ema.take(self._mass, end, observation.n_tokens)
        xp.multiply(self._of_layer[:, :, :end], self._exists, out=self._scores[:, :, :end])

    def forget(self, pages: np.ndarray) -> None:
        super().forget(pages)
        self._ema.forget(pages)
