"""A prior from the model's own position embedding."""

import numpy as np

from edgekv.arrays.ops import Ops
from edgekv.arrays.order import Later
from edgekv.arrays.rotary import distance_prior
from edgekv.arrays.topk import largest
from edgekv.common.errors import ConfigError
from edgekv.pages.observation import Observation
from edgekv.pages.residency import Residency, State
from edgekv.pages.shape import PageShape
from edgekv.tiering.prefetch.prefetcher import Prefetcher, Rope, only_home


class RopeDistance(Prefetcher):
    """Pages in the order of the prior of their distance (`arrays.rotary.distance_prior`, averaged over a page's positions), the same for all
    layers and heads. It knows nothing of the text: it serves the cold start and ties."""

    def __init__(self, shape: PageShape, rope: Rope | None, ops: Ops):
        super().__init__(shape, rope, ops)
        if rope is None:
            raise ConfigError("prefetch rope needs a model with rotary position embedding; use previous or none")
        n = shape.page_tokens
        prior = distance_prior((shape.pages_per_stream + 1) * n, rope.head_dim, rope.n_rot, rope.base, rope.factor)
        self.prior = prior.reshape(-1, n).mean(axis=1)
        """float32 [k]: prior of a page whose newest token is k * page_tokens to (k + 1) * page_tokens - 1 away."""

    def wanted(self, observation: Observation, residency: Residency, limit: int) -> Later[np.ndarray]:
        positions = observation.page_positions[: observation.n_used_end]
        # pages that are at home in no head would take the place of others
        pages = np.flatnonzero((positions >= 0) & (residency.state[:, :, : len(positions)] == State.HOME).any(axis=(0, 1)))
        distance = np.maximum(observation.position - positions[pages], 0) // self.shape.page_tokens
        best = pages[largest(self.prior[np.minimum(distance, len(self.prior) - 1)], min(limit, len(pages)))]
        layers, heads = np.nonzero(self.shape.exists)
        return Later.now(only_home(self.shape.ids(layers, heads, best[:, None]).reshape(-1), residency, limit))
