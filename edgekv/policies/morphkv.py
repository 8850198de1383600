"""The attention of the newest tokens together."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.common.enums import Split
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.age import within
from edgekv.policies.base import Policy, Settings, at_least

N_CHUNKS = 8
"""Chunks of tokens in the window's ring; the window slides by one chunk."""


@dataclass(frozen=True)
class MorphKvSettings(Settings):
    n_window: int = at_least(1, 32)
    """R, the number of newest tokens: the source's default."""


class MorphKv(Policy):
    """MorphKV, "Dialogue Without Limits: Constant-Sized KV Caches for Extended Responses in LLMs" (arXiv:2503.00979): each head keeps the R
    newest tokens (`n_window`) and the distant tokens that these attend most, summed over their queries ("sum fusion", the source's default
    for long prompts). Each run ranks them again:

        score = sum over the last R tokens of mass / R

    The window is R tokens to within an eighth: mass is summed in chunks of R / 8 tokens, and the oldest chunk leaves as a whole. A longer run
    is one chunk. A page has the sum of its tokens; pages with one of the R newest tokens are pinned.
    """

    settings: MorphKvSettings
    settings_of = MorphKvSettings
    scoring = True
    adds_up = True
    split = Split.UNIFORM

    def __init__(self, shape: PageShape, settings: MorphKvSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._chunk_tokens = max(1, settings.n_window // N_CHUNKS)
        self._older = ops.zeros(shape.axes, np.float32)  # the sum of the full chunks
        self._full: deque[tuple[Array, int]] = deque()
        self._filling, self._n_filling = ops.zeros(shape.axes, np.float32), 0
        self._free: list[Array] = []

    def update(self, observation: Observation) -> None:
        """Pins follow positions, even if no mass was observed."""
        self._pins = within(self.shape, observation, self.settings.n_window)
        if not observation.observed:
            return
        end, n = observation.n_used_end, observation.n_tokens
        if self._n_filling >= self._chunk_tokens:
            self._slide(n)
        filling = self._filling[:, :, :end]
        filling += observation.mass_sum[:, :, :end]
        self._n_filling += n
        n_window = self._n_filling + sum(n_chunk for _, n_chunk in self._full)
        scores = self._scores[:, :, :end]
        self.ops.xp.add(self._older[:, :, :end], filling, out=scores)
        scores *= np.float32(1 / n_window)

    def _slide(self, n_tokens: int) -> None:
        """Begin a chunk; the oldest chunks leave the window if it is then too long."""
        self._full.append((self._filling, self._n_filling))
        while self._full and sum(n for _, n in self._full) + n_tokens > self.settings.n_window:
            self._free.append(self._full.popleft()[0])
        self._filling = self._free.pop() if self._free else self.ops.zeros(self.shape.axes, np.float32)
        self._filling[...] = 0
        self._n_filling = 0
        self._older[...] = 0
        for chunk, _ in self._full:  # sums again: subtraction would leave rounding errors
            self._older += chunk

    def forget(self, pages: np.ndarray) -> None:
        super().forget(pages)
        for array in (self._older, self._filling, *(chunk for chunk, _ in self._full)):
            self.ops.clear(array, pages)
