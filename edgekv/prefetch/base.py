"""What every prefetcher is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekv.observation import Observation, Shape
from edgekv.residency import Residency, State


@dataclass(frozen=True)
class Rope:
    """The rotary position embedding of a model."""

    head_dim: int
    n_rot: int
    """Channels that are turned."""
    base: float = 10000.0
    factor: float = 1.0
    """Linear scaling: positions are divided by it."""


class Prefetcher:
    """Says which pages will be wanted next, before any score says so."""

    def __init__(self, shape: Shape, rope: Rope | None):
        self.shape = shape
        self.rope = rope

    def wanted(self, observation: Observation, residency: Residency, limit: int) -> np.ndarray:
        """int64 [<= limit]: ids of HOME pages, the most wanted first, each once."""
        raise NotImplementedError


def only_home(ids: np.ndarray, residency: Residency, limit: int) -> np.ndarray:
    """The first `limit` of the ids that are HOME, in the same order."""
    return ids[residency.state.reshape(-1)[ids] == State.HOME][:limit]
