"""The attention of the first tokens after a prompt."""

from __future__ import annotations

import numpy as np

from edgekv.arrays.ops import Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.age import by_page, newest

PROMPT_TOKENS = 16
"""A run of more tokens than this that was not observed is a prompt, or part of one."""


class PromptWindow:
    """Sums mass over the first `n_window` tokens that are observed after a prompt, then stays as it is until the next one.

    The sources look at the last tokens of the prompt; these are read in batches that nobody observes, so the window begins where they
    end (a recording's warm-up is the same). Runs of several tokens count with all of them: the window may be that much longer.
    There is one for all streams.
    """

    def __init__(self, shape: PageShape, n_window: int, ops: Ops):
        self._shape, self._ops = shape, ops
        self._n_window = n_window
        self.mass = ops.zeros(shape.axes, np.float32)
        """Array [row, head, page], over all its tokens."""
        self.n_tokens = 0
        self._begins = True
        self._since = np.full(shape.n_streams, -1)  # the newest position of each stream before it began

    @property
    def full(self) -> bool:
        """It has seen what it has to."""
        return self.n_tokens >= self._n_window and not self._begins

    def take(self, observation: Observation) -> bool:
        """A run. Whether it was one of the window."""
        if not observation.observed:
            self._begins |= observation.n_tokens > PROMPT_TOKENS
            return False
        if self._begins:
            self._begins = False
            self.mass[...] = 0
            self.n_tokens = 0
            self._since = newest(self._shape, observation) - observation.n_tokens
        if self.n_tokens >= self._n_window:
            return False
        self.n_tokens += observation.n_tokens
        part = self.mass[:, :, : observation.n_used_end]
        part += observation.mass_sum[:, :, : observation.n_used_end]
        return True

    def newer(self, observation: Observation) -> np.ndarray:
        """bool [:n_used_end]: the page has a token from the window or after it."""
        end = observation.n_used_end
        positions = observation.page_positions[:end]
        return (positions >= 0) & (positions > by_page(self._shape, self._since)[:end])

    def forget(self, pages: np.ndarray) -> None:
        self._ops.clear(self.mass, pages)
