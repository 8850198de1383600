"""Least frequently used."""

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.access import AccessSettings
from edgekv.policies.base import Policy


class Lfu(Policy):
    """score = access_mass * (tokens that accessed the page) / (tokens observed), 0 without accesses. An access is a mass above access_mass.
    Nothing decays, as in plain LFU; among pages with equal counts selection takes the newer.

    A run of several tokens counts as one access of each token where their mean mass is above access_mass, otherwise as none.
    """

    settings: AccessSettings
    settings_of = AccessSettings
    scoring = True

    def __init__(self, shape: PageShape, settings: AccessSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._counts = self._remember()
        self._n_tokens = 0

    def update(self, observation: Observation) -> None:
        if not observation.observed:
            return
        end, n, access_mass = observation.n_used_end, observation.n_tokens, self.settings.access_mass
        self._n_tokens += n
        counts = self._counts[:, :, :end]
        counts += (observation.mass_sum[:, :, :end] > access_mass * n) * np.float32(n)
        self.ops.xp.multiply(counts, np.float32(access_mass / self._n_tokens), out=self._scores[:, :, :end])
