"""Anchors: the first tokens stay."""

from dataclasses import dataclass

from edgekv.pages.observation import Observation
from edgekv.policies.age import begins_before
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
    kernels_only = True

    def update(self, observation: Observation) -> None:
        self._pins = begins_before(self.shape, observation.page_positions, self.settings.sink_tokens)
