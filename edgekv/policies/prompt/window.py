"""The attention of the end of a prompt."""

from __future__ import annotations

import numpy as np

from edgekv.arrays.ops import Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.age import by_page, newest

PROMPT_TOKENS = 16
"""A run of more tokens than this that was not observed is a prompt, or part of one, whatever is said of it."""


class PromptWindow:
    """Sums mass over the tokens at the end of a prompt, `n_window` of them; then stays as it is until the next prompt.

    The sources look at the last tokens of the prompt. Of each long part of a prompt the last tokens are observed, so the window begins anew
    there, and where a prompt begins; short parts, observed as a whole, go on with it until it is full. Where the end of the prompt was not
    enough, or nobody observed it (a recording's warm-up), the first tokens of the answer follow. Runs of several tokens count with all of
    them: the window may be that much longer. There is one for all streams.
    """

    def __init__(self, shape: PageShape, n_window: int, ops: Ops):
        self._shape, self._ops = shape, ops
        self._n_window = n_window
        self.mass = ops.zeros(shape.axes, np.float32)
        """Array [row, head, page], over all its tokens."""
        self.n_tokens = 0
        self._begins = True
        self._in_prompt = False  # the last run was
        self._since = np.full(shape.n_streams, -1)  # the newest position of each stream before it began

    @property
    def full(self) -> bool:
        """It has seen what it has to."""
        return self.n_tokens >= self._n_window and not self._begins

    def take(self, observation: Observation) -> bool:
        """A run. Whether it was one of the window."""
        goes_on = self._in_prompt and not observation.n_unobserved and not self.full
        in_prompt = observation.in_prompt or not observation.observed and observation.n_tokens > PROMPT_TOKENS
        if in_prompt or observation.observed:
            self._in_prompt = in_prompt
        self._begins |= in_prompt and not goes_on
        if not observation.observed:
            self._begins |= in_prompt  # they stand between what was seen and what will be
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
