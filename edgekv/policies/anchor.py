"""Anchors: what stands at the beginning stays, and on demand what the prompt's end attended most."""

from __future__ import annotations

import numpy as np

from edgekv.kernels.ops import Array, Ops
from edgekv.observation import Observation, Shape
from edgekv.policies.base import Policy, Settings
from edgekv.policies.window import PromptWindow


class Anchor(Policy):
    """Pins the pages that begin with the sinks (the first tokens, on which heads rest when nothing else matters: StreamingLLM,
    arXiv:2309.17453) or with the system prompt (`system_tokens`), by position, in every sequence.

    With `n_heavy` also in each head the heavy hitters: so many pages with most mass in the tokens after the prompt (`PromptWindow`),
    until the next prompt has others. None by default: pinning them was measured to cost more than it gains.
    """

    def __init__(self, shape: Shape, settings: Settings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self.system_tokens = 0
        self._pins = np.zeros(shape.n_pages, bool)
        self._window = PromptWindow(shape, settings, ops) if settings.n_heavy else None
        self._heavy = np.zeros(shape.axes if settings.n_heavy else (0, 0, 0), bool)

    @property
    def pins(self) -> np.ndarray:
        return self._pins | self._heavy if self._window is not None else self._pins

    def update(self, observation: Observation) -> None:
        n_tokens = max(self.settings.sink_tokens, self.system_tokens)
        # a page is known by its newest position: a full one began page_tokens - 1 earlier
        newest = n_tokens + self.shape.page_tokens - 1 if n_tokens else 0
        end = observation.n_used_end
        positions = observation.page_positions[:end]
        self._pins[end:] = False
        np.less(positions, newest, out=self._pins[:end])
        self._pins[:end] &= positions >= 0
        if self._window is not None and self._window.take(observation) and self._window.full:
            # waits for a device, once in a prompt
            self._heavy = self._best(self.ops.download(self._window.mass)) & (observation.page_positions >= 0)

    def _best(self, mass: np.ndarray) -> np.ndarray:
        n_pages = mass.shape[2]
        n = min(self.settings.n_heavy, n_pages)
        return (mass >= np.partition(mass, n_pages - n, axis=2)[:, :, n_pages - n, None]) & (mass > 0)

    def forget(self, pages: np.ndarray) -> None:
        if self._window is not None:
            self._window.forget(pages)
            self._heavy[:, :, pages] = False
