"""The common part of all policies: settings, scores, forgetting. A policy itself only scores pages."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.common.enums import Split
from edgekv.common.errors import ConfigError
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape


def number(default: int | float, allowed: Callable[[Any], bool], sentence: str) -> Any:
    """A field of `Settings`. allowed: the check of a value; sentence: what it may be, in words."""
    return field(default=default, metadata={"allowed": allowed, "sentence": sentence})


def at_least(least: int, default: int | float) -> Any:
    """A field of `Settings` with a least value."""
    return number(default, lambda value: value >= least, f"at least {least}")


@dataclass(frozen=True)
class Settings:
    """The numbers that a policy is made with. A policy with settings has a subclass in its file. Raises ConfigError."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not one.metadata["allowed"](value):
                raise ConfigError(f"{one.name} is {value!r}; it must be {one.metadata['sentence']}")


class Policy:
    """Says what pages are worth (`scores`) and which must stay (`pins`); either may be None. Scores live where `ops` works, as mass does;
    pins are NumPy arrays."""

    settings_of: type[Settings] = Settings
    """The class of its settings."""
    scoring = False
    """The policy has scores."""
    split: Split | None = None
    """Its source's division of the page budget; None: the source leaves that open."""
    adds_up = False
    """In mode evict a page is worth the sum of what all heads of a layer give it, as attention mass adds up; else the best head counts, as with times."""
    kernels_only = False
    """It asks for operations of `Ops` alone, and no function of `ops.xp`: on a GPU nothing is compiled for it."""
    clairvoyant = False
    """It sees a run's mass before the run: only a simulator can show that."""

    def __init__(self, shape: PageShape, settings: Settings, ops: Ops, scores: Array | None = None):
        """scores: an array of zeros to keep the scores in; None: a new one."""
        self.shape = shape
        self.settings = settings
        self.ops = ops
        self._remembered: list[Array] = []
        self._scores: Any = self._remember(scores) if self.scoring else None
        self._pins: np.ndarray | None = None

    def _remember(self, array: Array | None = None) -> Array:
        """float32 [layer, head, page]: zeros, or `array`, that `forget` sets to zero."""
        self._remembered.append(self.ops.zeros(self.shape.axes, np.float32) if array is None else array)
        return self._remembered[-1]

    @property
    def scores(self) -> Array | None:
        """float32 [layer, head, page], higher = keep, in attention mass per token, as a plan's limits are. Minus infinity: mode evict
        drops the page, though there is room. Pages from the last observation's n_used_end on have no meaning."""
        return self._scores

    @property
    def pins(self) -> np.ndarray | None:
        """bool [page], for all layers and heads, or [layer, head, page]: pages that are never demoted, and in mode evict never dropped."""
        return self._pins

    @property
    def sinks(self) -> int | None:
        """Mode evict keeps exactly so many of the first tokens, and the newest, cell by cell; None: it keeps pages, by scores and pins."""
        return None

    def update(self, observation: Observation) -> None:
        """Take in the tokens since the last run. Every run calls it, even if no mass was observed."""

    def most(self, n_budget: int) -> int:
        """The most pages of a head that the policy keeps, up to `n_budget`; fewer if its source fixes a number."""
        return n_budget

    def take_over(self, stream: int, source: int) -> None:
        """The tokens of `source` have replaced all of the stream's, as they were at the last run. A policy for all streams knows nothing of them."""
        self.forget(np.arange(stream * self.shape.pages_per_stream, (stream + 1) * self.shape.pages_per_stream))

    def forget(self, pages: np.ndarray) -> None:
        """Forget these pages (int [n]) in all layers and heads: their cells hold other tokens now, or none."""
        for array in self._remembered:
            self.ops.clear(array, pages)
