"""What the token itself will attend."""

from __future__ import annotations

import numpy as np

from edgekv.pages.observation import Observation
from edgekv.policies.base import Policy


class Oracle(Policy):
    """score = mass of the very token that selects by it: no policy by pages can cover more with the same split of the budget. It needs a
    recording (`clairvoyant`), so the simulator alone can run it. A run of several tokens counts with their mean."""

    scoring = True
    clairvoyant = True

    def update(self, observation: Observation) -> None:
        if observation.observed:
            end = observation.n_used_end
            self.ops.xp.multiply(observation.mass_sum[:, :, :end], np.float32(1 / observation.n_tokens), out=self._scores[:, :, :end])
