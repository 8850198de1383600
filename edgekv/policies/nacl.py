"""The attention of the prompt's end, and some pages by chance."""

from dataclasses import dataclass

import numpy as np

from edgekv.arrays.best import best
from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.base import at_least, number
from edgekv.policies.snapkv import SnapKv, SnapKvSettings


@dataclass(frozen=True)
class NaclSettings(SnapKvSettings):
    random_share: float = number(0.37, lambda share: 0 <= share <= 1, "from 0 to 1")
    """The share of the budget that is drawn. By default as in the source, where 7 % of the tokens are drawn beside 12 % by score."""
    seed: int = at_least(0, 0)


class Nacl(SnapKv):
    """NaCl, "A General and Effective KV Cache Eviction Framework for LLMs at Inference Time" (arXiv:2408.03675): once, at the end of the
    prompt, each head keeps the tokens that its proxy tokens attend most. It draws some others, so that a biased score does not decide alone:

        p = mass per token of the window
        score = 1 + p                      for the (1 - random_share) * budget pages with most p
                q / (1 + q), q = e^p / x   for the others, x drawn from the exponential distribution with mean 1

    The order of q draws pages without repetition with the weights e^p, the source's softmax over the scores. The source's proxies are the
    last 1 % of the prompt, here they are the tokens of `PromptWindow`. Newer pages are kept as by `snapkv`. The source protects its sinks and
    the newest tokens of the prompt: compose with anchor and recent for that. Where the budget is not known, nothing is drawn.
    """

    settings: NaclSettings
    settings_of = NaclSettings

    def __init__(self, shape: PageShape, settings: NaclSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        drawn = np.random.default_rng(settings.seed).standard_exponential(shape.axes, np.float32)
        self._drawn = ops.upload(np.maximum(drawn, np.float32(1e-6)))

    def _judge(self, observation: Observation) -> None:
        xp, end = self.ops.xp, observation.n_used_end
        p = self._window.mass[:, :, :end] * np.float32(1 / self._window.n_tokens)
        in_use = self.ops.upload((observation.page_positions[:end] >= 0).astype(np.float32))
        n_top = round((1 - self.settings.random_share) * observation.n_budget) if observation.n_budget else end
        q = xp.exp(p) / self._drawn[:, :, :end]
        self._kept[:, :, :end] = xp.where(best(self.ops, p, n_top), np.float32(1) + p, q / (np.float32(1) + q)) * in_use
