"""A simulated scenario: a policy and its surroundings."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from edgekv.common.enums import Split
from edgekv.common.errors import ConfigError
from edgekv.common.registry import Registry
from edgekv.config import PlacementOptions, choice
from edgekv.lab.traces.budget import Budget
from edgekv.tiering.prefetch import PREFETCHERS

OBSERVATIONS: Registry[str] = Registry("observation mode")
OBSERVATIONS.add("sampled", "sampled", "the policy sees what mode sparse reads: an estimate of the mass of every page")
OBSERVATIONS.add("honest", "honest", "the policy sees the pages it chose, as where it decides what is attended")
OBSERVATIONS.add("full", "full", "the policy sees the true mass of every page, which no live system can")


class Scenario(Struct, frozen=True):
    """One simulation. Raises ConfigError for settings that do not go together."""

    policy: str = PlacementOptions.policy
    budget: Budget | float = 0.10
    """Share of hot pages among the visible ones, on average over heads, or a Budget with a number of tokens."""
    split: Split | None = None
    """None: that of the policy's source; without one, pooled like the arena, and uniform under honest observation."""
    observe: str = "sampled"
    """One of OBSERVATIONS."""
    prefetch: str = "none"
    prefetch_pages: float = 1.0
    """Most prefetched pages of a head in a step, on average over heads."""
    settings: Mapping[str, int | float] = field(default_factory=dict)
    """Settings of the policies, by name."""

    def __post_init__(self) -> None:
        set_ = force_setattr
        if not isinstance(self.budget, Budget):
            if not 0 < self.budget <= 1:
                raise ConfigError(f"the budget is {self.budget!r}; it must be a share of the pages above 0 and at most 1")
            set_(self, "budget", Budget(share=float(self.budget)))
        if self.split is not None:
            set_(self, "split", choice(Split, self.split, "budget split"))
        OBSERVATIONS.get(self.observe)
        PREFETCHERS.get(self.prefetch)
        if self.prefetch_pages < 0:
            raise ConfigError(f"prefetch_pages is {self.prefetch_pages!r}; it must not be negative")

    def with_(self, **changes) -> Scenario:
        return replace(self, **changes)

    def n_budget(self, n_visible: int, page_tokens: int) -> int:
        """The average number of pages of a head."""
        return self.budget.pages(n_visible, page_tokens)  # type: ignore[union-attr]  # __post_init__ made it one

    @property
    def name(self) -> str:
        """Policy and observation: "ema+anchor+recent (sampled)"."""
        return f"{self.policy} ({self.observe})"
