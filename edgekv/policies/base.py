"""What every policy does alike: allocating, forgetting. A policy itself only says what a page is worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.errors import ConfigError
from edgekv.pages.observation import Observation, Shape
from edgekv.vocab import Split


@dataclass(frozen=True)
class Settings:
    """The numbers policies are made with."""

    alpha: float = 0.1
    """ema: weight of the newest token."""
    sink_tokens: int = 16
    """anchor: pages that begin before this position are pinned."""
    recent_tokens: int = 64
    """recent: pages with one of so many newest positions are pinned."""
    access_mass: float = 0.01
    """lru, lfu, mlfq, s3fifo: a page with more attention mass than this, per token, was accessed."""
    seed: int = 0
    """random, nacl."""
    n_window: int = 32
    """snapkv, pyramidkv, adakv, nacl: so many tokens after a prompt say what of it matters. morphkv: so many newest tokens do.
    SnapKV's and MorphKV's default."""
    kernel_tokens: int = 5
    """snapkv, pyramidkv, adakv: width of the pooling along the sequence, an odd number. SnapKV's default."""
    window_tokens: int = 40
    """hierarchical: tokens between two changes of level. mlfq: tokens without an access after which a page sinks."""
    n_top: int = 16
    """hierarchical: so many pages with most mass of a head are popular."""
    random_share: float = 0.37
    """nacl: share of the budget that is drawn. Its source's defaults: 7 % of the tokens drawn beside 12 % by score."""

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ConfigError(f"alpha is {self.alpha!r}; it must be above 0 and at most 1")
        for name in ("sink_tokens", "recent_tokens", "access_mass", "seed"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must not be negative")
        for name in ("n_window", "kernel_tokens", "window_tokens", "n_top"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be at least 1")
        if self.kernel_tokens % 2 == 0:
            raise ConfigError(f"kernel_tokens is {self.kernel_tokens}; it must be odd, so that the kernel has a middle")
        if not 0 <= self.random_share <= 1:
            raise ConfigError(f"random_share is {self.random_share!r}; it must be from 0 to 1")


class Policy:
    """What pages are worth (`scores`) and which must stay (`pins`); either may be None. Scores live where `ops` works, as the mass
    does; pins by page are NumPy arrays."""

    scoring = False
    """The policy has scores."""
    split: Split | None = None
    """How its source divides the page budget; None: it leaves that open."""
    needs_keys = False
    """It wants `Observation.key_norms`."""
    clairvoyant = False
    """It wants to see a run's mass before it is attended: only a simulator can do that."""

    def __init__(self, shape: Shape, settings: Settings, ops: Ops, scores: Array | None = None):
        """scores: zeros to keep them in; None: the policy makes its own."""
        self.shape = shape
        self.settings = settings
        self.ops = ops
        self._scores = (ops.zeros(shape.axes, np.float32) if scores is None else scores) if self.scoring else None

    @property
    def scores(self) -> Array | None:
        """float32 [row, head, page], higher = keep, on the scale of attention mass per token: what a plan's limits are in. From
        n_used_end of the last observation on, it is zero or not yet of meaning."""
        return self._scores

    @property
    def pins(self) -> np.ndarray | None:
        """bool, [page] (all rows and heads) or [row, head, page]: never demoted, always read."""
        return None

    def update(self, observation: Observation) -> None:
        """Take in the tokens since the last run. Called in each run, also where no mass was observed."""

    def most(self, n_budget: int) -> int:
        """How many pages of a budget of so many for each head it would keep, where its source fixes that."""
        return n_budget

    def forget(self, pages: np.ndarray) -> None:
        """The cells of these pages (int [n], of all rows and heads) hold other tokens now, or none."""
        if self._scores is not None:
            self.ops.clear(self._scores, pages)
