"""The attention of the selecting token itself."""

import numpy as np

from edgekv.pages.observation import Observation
from edgekv.policies.base import Policy


class Oracle(Policy):
    """score = mass of the very token that selects by it, the mean in a run of several: with the same split of the budget no policy by pages
    covers more. It needs a recording (`clairvoyant`), so only the simulator can run it."""

    scoring = True
    clairvoyant = True

    def update(self, observation: Observation) -> None:
        if observation.observed:
            end = observation.n_used_end
            self.ops.xp.multiply(observation.mass_sum[:, :, :end], np.float32(1 / observation.n_tokens), out=self._scores[:, :, :end])
