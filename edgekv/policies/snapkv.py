"""The attention of the prompt's end."""

from dataclasses import dataclass

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.common.enums import Split
from edgekv.common.errors import ConfigError
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.age import KEPT, recency
from edgekv.policies.base import Policy, Settings, at_least, number
from edgekv.policies.window import PromptWindow


@dataclass(frozen=True)
class SnapKvSettings(Settings):
    n_window: int = at_least(1, 32)
    """Tokens at the end of a prompt that judge it: SnapKV's default."""
    kernel_tokens: int = number(5, lambda k: k >= 1 and k % 2, "an odd number from 1 on, so that the kernel has a middle")
    """Width of the pooling along the sequence: SnapKV's default."""


class SnapKv(Policy):
    """SnapKV, "LLM Knows What You are Looking for Before Generation" (arXiv:2404.14469): each head keeps the tokens that the last `n_window`
    tokens of the prompt attend most, their attention averaged along the sequence by a kernel of `kernel_tokens` (all three are the source's
    defaults). They are judged once. Newer pages are kept, and of these the newest where they alone exceed the budget:

        score(page) = average of mass per token of the window;  with newer tokens: KEPT * (1 + 1 / (1 + age in pages))

    The window is `PromptWindow`. Averaging moves mass between tokens, and between pages only at their edges: with k = kernel_tokens and
    h = (k - 1) / 2 a page of p tokens gives h (h + 1) / (2 k p) of its mass to either neighbour, if its mass is even.
    """

    settings_of = SnapKvSettings
    scoring = True
    split: Split | None = Split.UNIFORM

    def __init__(self, shape: PageShape, settings: SnapKvSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        k, p = settings.kernel_tokens, shape.page_tokens
        reach = (k - 1) // 2
        if reach > p:
            raise ConfigError(f"kernel_tokens is {k}; it may be at most {2 * p + 1}, as pages have {p} tokens")
        self._edge = reach * (reach + 1) / (2 * k * p)
        self._window = PromptWindow(shape, settings.n_window, ops)
        self._kept = self._remember()

    def update(self, observation: Observation) -> None:
        in_window = self._window.take(observation)
        if not observation.observed:
            return
        if in_window:
            self._judge(observation)
        end = observation.n_used_end
        newer = self._window.newer(observation) * np.float32(KEPT) * (1 + recency(self.shape, observation))
        self.ops.xp.add(self._kept[:, :, :end], self.ops.upload(newer.astype(np.float32)), out=self._scores[:, :, :end])

    def _judge(self, observation: Observation) -> None:
        """Set `_kept` to the window's judgement of each page."""
        end = observation.n_used_end
        mass, kept = self._window.mass[:, :, :end], self._kept[:, :, :end]
        n = self._window.n_tokens
        self.ops.xp.multiply(mass, np.float32((1 - 2 * self._edge) / n), out=kept)
        in_use = observation.page_positions[:end] >= 0
        first = np.arange(end) % max(1, self.shape.pages_per_stream) == 0  # no page before it
        from_before, from_behind = (np.where(takes, np.float32(self._edge / n), np.float32(0))
                                    for takes in ((in_use & ~first)[1:], in_use[:-1] & ~first[1:]))
        kept[:, :, 1:] += mass[:, :, :-1] * self.ops.upload(from_before)
        kept[:, :, :-1] += mass[:, :, 1:] * self.ops.upload(from_behind)

    def forget(self, pages: np.ndarray) -> None:
        super().forget(pages)
        self._window.forget(pages)
