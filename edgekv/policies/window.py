"""The attention of the end of a prompt."""

import numpy as np

from edgekv.arrays.ops import Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.age import by_page, newest

PROMPT_TOKENS = 16
"""An unobserved run of more tokens than this counts as a prompt, or part of one."""


class PromptWindow:
    """Sums mass over the last `n_window` tokens of a prompt, then stays as it is until the next prompt. All streams share one window.

    Only the last tokens of a long part of a prompt are observed. So the window starts again with each long part, and with each prompt; short
    parts, observed as a whole, continue it until it is full. Where the end of the prompt was too short, or not observed (a recording's
    warm-up), the first tokens of the answer follow. A run counts with all its tokens: the window may be that much longer.
    """

    def __init__(self, shape: PageShape, n_window: int, ops: Ops):
        self._shape, self._ops = shape, ops
        self._n_window = n_window
        self.mass = ops.zeros(shape.axes, np.float32)
        """float32 [layer, head, page], summed over `n_tokens`."""
        self.n_tokens = 0
        self._begins = True
        self._in_prompt = False  # the last run was in a prompt
        self._since = np.full(shape.n_streams, -1)  # the newest position of each stream before it began

    @property
    def full(self) -> bool:
        """It has seen n_window tokens."""
        return self.n_tokens >= self._n_window and not self._begins

    def take(self, observation: Observation) -> bool:
        """Take in a run; True: it is part of the window."""
        goes_on = self._in_prompt and not observation.n_unobserved and not self.full
        in_prompt = observation.in_prompt or not observation.observed and observation.n_tokens > PROMPT_TOKENS
        if in_prompt or observation.observed:
            self._in_prompt = in_prompt
        self._begins |= in_prompt and not goes_on
        if not observation.observed:
            self._begins |= in_prompt  # the unobserved tokens interrupt the window
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
