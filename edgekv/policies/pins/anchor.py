"""Anchors: the first tokens stay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.base import Policy, Settings, at_least


@dataclass(frozen=True)
class AnchorSettings(Settings):
    sink_tokens: int = at_least(0, 16)
    """Pages that begin before this position are pinned."""


class Anchor(Policy):
    """Pins the pages that begin before position `sink_tokens`, in every sequence. They hold the sinks, the first tokens, which heads attend
    when nothing else matters (StreamingLLM, arXiv:2309.17453)."""

    settings: AnchorSettings
    settings_of = AnchorSettings

    def __init__(self, shape: PageShape, settings: AnchorSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._pins = np.zeros(shape.n_pages, bool)

    @property
    def pins(self) -> np.ndarray:
        return self._pins

    def update(self, observation: Observation) -> None:
        n_tokens = self.settings.sink_tokens
        # page_positions has each page's newest position: a full page begins page_tokens - 1 earlier
        newest = n_tokens + self.shape.page_tokens - 1 if n_tokens else 0
        end = observation.n_used_end
        positions = observation.page_positions[:end]
        self._pins[end:] = False
        np.less(positions, newest, out=self._pins[:end])
        self._pins[:end] &= positions >= 0
