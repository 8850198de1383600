"""Levels by the number of accesses; a page without new ones sinks again."""

from dataclasses import dataclass

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.access import AccessSettings
from edgekv.policies.base import Policy, at_least

N_LEVELS = 8
"""MQ's number of queues."""


@dataclass(frozen=True)
class MlfqSettings(AccessSettings):
    window_tokens: int = at_least(1, 40)
    """Tokens without an access after which a page sinks."""


class Mlfq(Policy):
    """The multi-level feedback queue of schedulers, as caches have it: MQ ("The Multi-Queue Replacement Algorithm for Second Level
    Buffer Caches", Zhou, Philbin and Li, USENIX 2001).

    A page with f accesses is in queue min(floor(log2 f), 7). Without an access for a lifetime it sinks one queue, and has another lifetime
    there. An access takes it back to the queue of its f. Within a queue the order is LRU:

        score = access_mass / 8 * (queue + 1 / (1 + tokens since it was accessed or sank)),  without accesses: 0

    An access is a mass above access_mass per token; each token of a run counts, as in `lfu`. The source takes the lifetime from the peak of
    the distances between accesses in a trace; here it is `window_tokens`. In the source one page of each queue sinks per access; here all
    that are due sink.
    """

    settings: MlfqSettings
    settings_of = MlfqSettings
    scoring = True

    def __init__(self, shape: PageShape, settings: MlfqSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._counts, self._levels, self._idle = (self._remember() for _ in range(3))

    def update(self, observation: Observation) -> None:
        if not observation.observed:
            return
        xp, end, n, access_mass = self.ops.xp, observation.n_used_end, observation.n_tokens, self.settings.access_mass
        counts, levels, idle = (array[:, :, :end] for array in (self._counts, self._levels, self._idle))
        accessed = observation.mass_sum[:, :, :end] > access_mass * n
        counts += accessed * np.float32(n)
        idle += np.float32(n)
        sinks = idle >= self.settings.window_tokens
        queue = xp.minimum(xp.floor(xp.log2(xp.maximum(counts, np.float32(1)))), np.float32(N_LEVELS - 1))
        levels[...] = xp.where(accessed, queue, xp.maximum(levels - sinks, np.float32(0)))
        idle[...] = xp.where(accessed | sinks, np.float32(0), idle)
        worth = (levels + np.float32(1) / (np.float32(1) + idle)) * np.float32(access_mass / N_LEVELS)
        xp.multiply(worth, counts > 0, out=self._scores[:, :, :end])
