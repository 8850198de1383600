"""The newest pages."""

from dataclasses import dataclass

from edgekv.pages.observation import Observation
from edgekv.policies.age import within
from edgekv.policies.base import Policy, Settings, at_least


@dataclass(frozen=True)
class RecentSettings(Settings):
    recent_tokens: int = at_least(0, 64)
    """Pages with one of this many newest positions are pinned."""


class Recent(Policy):
    """Pins the pages with one of the `recent_tokens` newest positions of their stream."""

    settings: RecentSettings
    settings_of = RecentSettings
    kernels_only = True

    def update(self, observation: Observation) -> None:
        self._pins = within(self.shape, observation, self.settings.recent_tokens)
