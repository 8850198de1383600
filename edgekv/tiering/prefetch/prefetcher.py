"""The interface of all prefetchers, and the one that wants nothing."""

import numpy as np
from msgspec import Struct

from edgekv.arrays.ops import Ops
from edgekv.arrays.order import Later
from edgekv.pages.observation import Observation
from edgekv.pages.residency import Residency, State
from edgekv.pages.shape import PageShape


class Rope(Struct, frozen=True):
    """The rotary position embedding of a model."""

    head_dim: int
    n_rot: int
    """Channels that are rotated."""
    base: float = 10000.0
    factor: float = 1.0
    """Linear scaling: positions are divided by it. YaRN also leaves fast channels unscaled; that is left out, because fast channels say
    little at distances of many pages."""


NOTHING = Later.now(np.empty(0, np.int64))


class Prefetcher:
    """Says which pages will be wanted next, before their scores do: this one, none. Mass lives where `ops` works."""

    def __init__(self, shape: PageShape, rope: Rope | None, ops: Ops):
        self.shape = shape
        self.rope = rope
        self.ops = ops

    def wanted(self, observation: Observation, residency: Residency, limit: int) -> Later[np.ndarray]:
        """int64 [<= limit]: ids of HOME pages, most wanted first, each once. A device answers later; by then pages may have left home."""
        return NOTHING


def only_home(ids: np.ndarray, residency: Residency, limit: int) -> np.ndarray:
    """The first `limit` of the ids that are HOME, in the same order."""
    return ids[residency.state.reshape(-1)[ids] == State.HOME][:limit]
