"""What every policy does alike: allocating, forgetting. A policy itself only says what a page is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.errors import ConfigError
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.vocab import Split


def number(default: int | float, allowed: Callable[[Any], bool], sentence: str) -> Any:
    """A field of `Settings`: what it may be, and that in words."""
    return field(default=default, metadata={"allowed": allowed, "sentence": sentence})


def at_least(least: int, default: int | float) -> Any:
    """A field of `Settings` with a least value."""
    return number(default, lambda value: value >= least, f"at least {least}")


@dataclass(frozen=True)
class Settings:
    """The numbers that a policy is made with: each policy has a class of its own, beside it. Raises ConfigError."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not one.metadata["allowed"](value):
                raise ConfigError(f"{one.name} is {value!r}; it must be {one.metadata['sentence']}")


class Policy:
    """What pages are worth (`scores`) and which must stay (`pins`); either may be None. Scores live where `ops` works, as the mass
    does; pins by page are NumPy arrays."""

    settings_of: type[Settings] = Settings
    """The class of its settings."""
    scoring = False
    """The policy has scores."""
    split: Split | None = None
    """How its source divides the page budget; None: it leaves that open."""
    needs_keys = False
    """It wants `Observation.key_norms`."""
    clairvoyant = False
    """It wants to see a run's mass before it is attended: only a simulator can do that."""

    def __init__(self, shape: PageShape, settings: Settings, ops: Ops, scores: Array | None = None):
        """scores: zeros to keep them in; None: the policy makes its own."""
        self.shape = shape
        self.settings = settings
        self.ops = ops
        self._scores: Any = (ops.zeros(shape.axes, np.float32) if scores is None else scores) if self.scoring else None

    @property
    def scores(self) -> Array | None:
        """float32 [row, head, page], higher = keep, on the scale of attention mass per token: what a plan's limits are in. From
        n_used_end of the last observation on, it is zero or not yet of meaning."""
        return self._scores

    @property
    def pins(self) -> np.ndarray | None:
        """bool, [page] (all rows and heads) or [row, head, page]: never demoted, and in mode evict never dropped."""
        return None

    def update(self, observation: Observation) -> None:
        """Take in the tokens since the last run. Called in each run, also where no mass was observed."""

    def most(self, n_budget: int) -> int:
        """How many of `n_budget` pages for each head it would keep, where its source fixes that."""
        return n_budget

    def forget(self, pages: np.ndarray) -> None:
        """The cells of these pages (int [n], of all rows and heads) hold other tokens now, or none."""
        if self._scores is not None:
            self.ops.clear(self._scores, pages)
