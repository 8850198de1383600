"""The first tokens and the newest."""

import math
from dataclasses import dataclass

from edgekv.arrays.ops import Array, Ops
from edgekv.common.enums import Split
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.age import KEPT, begins_before, recency
from edgekv.policies.base import Policy, Settings, at_least


@dataclass(frozen=True)
class StreamingSettings(Settings):
    sink_tokens: int = at_least(0, 16)
    """Pages that begin before this position are kept at any age."""


class Streaming(Policy):
    """StreamingLLM, "Efficient Streaming Language Models with Attention Sinks" (arXiv:2309.17453): the sinks and the newest tokens:

        score = 1 / (1 + age in pages),  for the sinks: KEPT

    so that the window is the rest of the budget. The sinks are the pages of each stream that begin before `sink_tokens`; the source has 4
    tokens, whose page has 16. Mode evict keeps `sink_tokens` cells, no whole pages, and the newest to the cell. The policy looks at no
    attention, so unobserved tokens count like others.
    """

    settings: StreamingSettings
    settings_of = StreamingSettings
    scoring = True
    split = Split.UNIFORM

    @property
    def sinks(self) -> int | None:
        return self._sink_tokens()

    def _sink_tokens(self) -> int:
        return self.settings.sink_tokens

    def update(self, observation: Observation) -> None:
        end = observation.n_used_end
        scores = recency(self.shape, observation)
        scores[begins_before(self.shape, observation.page_positions[:end], self._sink_tokens())] = KEPT
        self._scores[:, :, :end] = self.ops.upload(scores)


class Streaming288(Streaming):
    """StreamingLLM with 32 sinks and a window of 256 tokens at any budget: 2 + 16 pages of 16 tokens."""

    SINK_TOKENS = 32
    WINDOW_TOKENS = 256

    def __init__(self, shape: PageShape, settings: StreamingSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._most = sum(math.ceil(n / shape.page_tokens) for n in (self.SINK_TOKENS, self.WINDOW_TOKENS))

    def _sink_tokens(self) -> int:
        return self.SINK_TOKENS

    def most(self, n_budget: int) -> int:
        return min(n_budget, self._most)
