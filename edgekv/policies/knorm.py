"""Keys of low norm."""

import numpy as np

from edgekv.common.enums import Split
from edgekv.common.errors import ConfigError
from edgekv.pages.observation import Observation
from edgekv.policies.base import Policy


class KNorm(Policy):
    """"A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression" (arXiv:2406.11430): keys with a low norm get most attention,
    so each head keeps these:

        score = 1 / (L2 norm of the key)

    A page has the mean norm of its keys. The policy looks at no attention, so unobserved tokens count like others. The source leaves the
    first two layers whole; this policy does not.
    """

    scoring = True
    split = Split.UNIFORM
    needs_keys = True

    def update(self, observation: Observation) -> None:
        if observation.key_norms is None:
            raise ConfigError("the policy knorm needs the norms of the keys, and they are not known here; use another policy")
        end = observation.n_used_end
        in_use = self.ops.upload((observation.page_positions[:end] >= 0).astype(np.float32))
        # 1e-6: an empty page's norm is 0
        self.ops.xp.true_divide(in_use, observation.key_norms[:, :, :end] + np.float32(1e-6), out=self._scores[:, :, :end])
