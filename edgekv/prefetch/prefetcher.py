"""What every prefetcher is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekv.arrays.ops import Ops
from edgekv.arrays.order import Later
from edgekv.pages.observation import Observation
from edgekv.pages.residency import Residency, State
from edgekv.pages.shape import PageShape


@dataclass(frozen=True)
class Rope:
    """The rotary position embedding of a model."""

    head_dim: int
    n_rot: int
    """Channels that are turned."""
    base: float = 10000.0
    factor: float = 1.0
    """Linear scaling: positions are divided by it. What YaRN does beyond that, turning the fast channels as if there were none, is left
    out: these say little at distances of many pages."""


class Prefetcher:
    """Says which pages will be wanted next, before any score says so. The mass it sees lives where `ops` works."""

    def __init__(self, shape: PageShape, rope: Rope | None, ops: Ops):
        self.shape = shape
        self.rope = rope
        self.ops = ops

    def wanted(self, observation: Observation, residency: Residency, limit: int) -> Later[np.ndarray]:
        """int64 [<= limit]: ids of HOME pages, the most wanted first, each once. On a device the answer comes later; pages may
        have left home by then."""
        raise NotImplementedError


NOTHING = Later.now(np.empty(0, np.int64))


def only_home(ids: np.ndarray, residency: Residency, limit: int) -> np.ndarray:
    """The first `limit` of the ids that are HOME, in the same order."""
    return ids[residency.state.reshape(-1)[ids] == State.HOME][:limit]
