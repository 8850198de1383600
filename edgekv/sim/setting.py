"""What is simulated: a policy and everything around it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from edgekv.config import Attend, KvOptions, choice
from edgekv.errors import ConfigError
from edgekv.policies import Settings
from edgekv.prefetch import PREFETCHERS
from edgekv.registry import Registry
from edgekv.vocab import SketchKind, Split

OBSERVATIONS: Registry[str] = Registry("observation mode")
OBSERVATIONS.add("honest", "honest", "the policy sees the pages that were attended, as a live system does")
OBSERVATIONS.add("full", "full", "the policy sees the true mass of every page, which no live system can")


@dataclass(frozen=True)
class Access:
    """Which pages a head wants in a step, by their true mass."""

    top: int = 8
    """The so many with most; 0: by `share`."""
    share: float = 0.0
    """Those with more than this share of the head's mass."""

    @classmethod
    def parse(cls, value: Access | str) -> Access:
        """ "top8" or "mass1%". Raises ConfigError."""
        if isinstance(value, Access):
            return value
        if match := re.fullmatch(r"top([1-9]\d*)", value.strip()):
            return cls(top=int(match[1]))
        if (match := re.fullmatch(r"mass(\d+(?:\.\d+)?)%", value.strip())) and 0 < float(match[1]) < 100:
            return cls(top=0, share=float(match[1]) / 100)
        raise ConfigError(f"the access is {value!r}; write topN for the N pages with most attention mass, or massP% for those with "
                          "more than P % of it, such as top8 or mass1%")

    def __str__(self) -> str:
        return f"top{self.top}" if self.top else f"mass{100 * self.share:g}%"


@dataclass(frozen=True)
class Setting:
    """One simulation. Raises ConfigError for what does not go together."""

    policy: str = KvOptions.policy
    budget: Attend | float = 0.125
    """Share of the visible pages that a head attends on average, or an Attend with a number of tokens. No least number of tokens
    is added to it, as `KvOptions.min_tokens` is live."""
    split: Split | None = None
    """None: that of the policy's source; where it has none, pooled with a sketch, as live, and uniform without."""
    observe: str = "honest"
    """One of OBSERVATIONS."""
    sketch: str | None = None
    """The kind whose estimates select; None: the policy's scores alone do."""
    blend: float = KvOptions.blend
    """Weight of the policy's score against the sketch's estimate."""
    feed: bool | None = None
    """The honest policy sees the sketch's estimate for pages that were not attended; None: where there is a sketch, as live."""
    prefetch: str = "none"
    prefetch_pages: float = 1.0
    """How many pages a head may be given in a step by prefetch, on average over heads."""
    pool: float = 1.0
    """Hot pages that may be kept, in units of the budget; 1: what was attended is what is hot."""
    coverage: float = 0.0
    """A head attends the fewest of its pages that are worth this share of all it sees, the budget at most; 0: no target."""
    access: Access | str = Access()
    """Which pages count as wanted, for `hit_rate`."""
    settings: Settings = Settings()

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if not isinstance(self.budget, Attend):
            if not 0 < self.budget <= 1:
                raise ConfigError(f"the budget is {self.budget!r}; it must be a share of the pages above 0 and at most 1")
            set_(self, "budget", Attend(share=float(self.budget)))
        if self.split is not None:
            set_(self, "split", choice(Split, self.split, "budget split"))
        OBSERVATIONS.get(self.observe)
        PREFETCHERS.get(self.prefetch)
        if self.sketch is not None:
            kind = choice(SketchKind, self.sketch, "sketch")
            set_(self, "sketch", None if kind is SketchKind.NONE else kind.value)
        if self.feed and (self.sketch is None or self.observe != "honest"):
            raise ConfigError("feed gives the policy the sketch's estimate of what it does not see, so it needs a sketch and "
                              "honest observation; leave it out, or choose them")
        set_(self, "feed", self.sketch is not None and self.observe == "honest" if self.feed is None else self.feed)
        for name in ("blend", "coverage"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be a number from 0 to 1")
        if self.pool < 1:
            raise ConfigError(f"the pool is {self.pool!r} budgets; it must be 1 or more, since what is attended becomes hot")
        if self.prefetch_pages < 0:
            raise ConfigError(f"prefetch_pages is {self.prefetch_pages!r}; it must not be negative")
        set_(self, "access", Access.parse(self.access))

    def with_(self, **changes) -> Setting:
        return replace(self, **changes)

    def n_budget(self, n_visible: int, page_tokens: int) -> int:
        """Pages of a head on average, as native selection counts them."""
        return self.budget.pages(n_visible, page_tokens)

    @property
    def name(self) -> str:
        """Policy, sketch and what was observed, in a few words: "b2 ema+anchor+recent (honest)"."""
        seen = "honest, fed" if self.feed else self.observe
        return f"{self.sketch + ' ' if self.sketch else ''}{self.policy} ({seen})"
