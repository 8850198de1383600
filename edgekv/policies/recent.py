"""The newest pages."""

from __future__ import annotations

import numpy as np

from edgekv.kernels.ops import Array, Ops
from edgekv.observation import Observation, Shape
from edgekv.policies.base import Policy, Settings


class Recent(Policy):
    """Pins the pages with one of the `recent_tokens` newest positions of their stream."""

    def __init__(self, shape: Shape, settings: Settings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._pins = np.zeros(shape.n_pages, bool)

    @property
    def pins(self) -> np.ndarray:
        return self._pins

    def update(self, observation: Observation) -> None:
        recent = self.settings.recent_tokens
        streams = observation.page_positions.reshape(self.shape.n_streams, -1)
        if self.shape.n_streams == 1:
            streams = streams[:, : observation.n_used_end]
            self._pins[observation.n_used_end :] = False
        if streams.size:
            newest = streams.max(axis=1, keepdims=True)
            # an empty page is at -1: it is never newer than a stream's start
            np.greater(streams, np.maximum(newest - recent, -1), out=self._pins[: streams.size].reshape(streams.shape))
