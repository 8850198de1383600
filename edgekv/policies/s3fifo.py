"""Three queues, first in, first out."""

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.access import AccessSettings
from edgekv.policies.base import Policy

SMALL_SHARE = 0.1
"""The small queue's share of the cache: the source's default."""
MOST_HITS = 3
"""Hits are counted in two bits."""

_HIT = 1 << 29
"""The sort key of one hit: it outweighs any age. Keys have 32 bits, which sort several times faster than 64."""

_NONE = np.iinfo(np.int32).max


class S3Fifo(Policy):
    """S3-FIFO, "FIFO queues are all you need for cache eviction" (Yang et al., SOSP 2023). Each head is a cache of `n_budget` pages; an
    access is a mass above access_mass per token. An accessed page that is not in the cache enters the small queue, or the main queue if its
    ghost is remembered. Hits in the cache are counted, to 3. While the cache holds too many pages,

    - the oldest page of the small queue leaves it, if that has more than a tenth: with two hits or more it moves to the main queue. Otherwise
      it goes; its ghost is remembered until as many others as the main queue holds have gone with it or after it;
    - else the oldest page of the main queue goes, or with a hit enters the queue again with one hit less.

    A run accesses many pages at once. They enter together, in the order of pages, and then all surplus pages go: the loop over single
    accesses would do the same. Where the budget is not known, everything fits.

        score = access_mass / 6 * ((2 + hits + r) in the main queue, (1 + r) in the small, r / 2 as a ghost), otherwise 0

    with r = 1 / (1 + runs since the page entered). Pages in the cache come first, in the order in which they would go.
    """

    settings: AccessSettings
    settings_of = AccessSettings
    scoring = True

    def __init__(self, shape: PageShape, settings: AccessSettings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._small, self._main = (ops.zeros(shape.axes, bool) for _ in range(2))
        self._hits, self._ghosts, self._entered = (ops.zeros(shape.axes, np.int32) for _ in range(3))  # ghosts: number, 0: none
        self._n_ghosts = ops.zeros((*shape.axes[:2], 1), np.int32)
        self._pages = ops.upload(np.arange(1, shape.n_pages + 1, dtype=np.int32))
        self._oldest = _HIT // (shape.n_pages + 1) - 2  # in runs; greater ages count as this one
        self._n_runs = 0

    def update(self, observation: Observation) -> None:
        end = observation.n_used_end
        if not observation.observed or not end:
            return
        self._n_runs += 1
        xp, now = self.ops.xp, np.int32(self._n_runs)
        small, main, hits, ghosts, entered = (
            array[:, :, :end] for array in (self._small, self._main, self._hits, self._ghosts, self._entered))
        capacity = min(observation.n_budget or end, end)
        small_capacity = max(1, int(SMALL_SHARE * capacity))

        accessed = observation.mass_sum[:, :, :end] > self.settings.access_mass * observation.n_tokens
        cached = small | main
        hits[...] = xp.minimum(hits + (accessed & cached), np.int32(MOST_HITS))
        enters = accessed & ~cached
        returns = enters & (ghosts > 0) & (self._n_ghosts - ghosts < capacity - small_capacity)
        main |= returns
        small |= enters & ~returns
        ghosts *= ~enters
        xp.copyto(entered, now, where=enters)

        n_small = xp.sum(small, axis=2, keepdims=True, dtype=np.int32)
        too_many = n_small + xp.sum(main, axis=2, keepdims=True, dtype=np.int32) - np.int32(capacity)
        order, unloved = self._order(entered), small & (hits <= 1)
        leaves = small & (order <= xp.minimum(self._smallest(order, small, n_small - np.int32(small_capacity)),
                                              self._smallest(order, unloved, too_many)))
        goes, moves = leaves & unloved, leaves & ~unloved
        small &= ~leaves
        main |= moves
        hits *= ~leaves
        ghosts[...] = xp.where(goes, self._n_ghosts + np.int32(1), ghosts)
        xp.copyto(entered, now, where=moves)
        n_gone = xp.sum(goes, axis=2, keepdims=True, dtype=np.int32)
        self._n_ghosts += n_gone

        self._leave_main(main, hits, entered, now, too_many - n_gone)
        r = np.float32(1) / (now + np.int32(1) - entered).astype(np.float32)
        worth = main * (hits + (r + np.float32(2))) + small * (r + np.float32(1)) + (ghosts > 0) * r * np.float32(0.5)
        xp.multiply(worth, np.float32(self.settings.access_mass / 6), out=self._scores[:, :, :end])

    def _leave_main(self, main: Array, hits: Array, entered: Array, now: np.int32, n: Array) -> None:
        """Drop the n pages that a loop over the oldest would drop: those with the fewest hits, the oldest first. A survivor loses a hit each
        time that the loop passes it, and enters again."""
        xp, order = self.ops.xp, self._order(entered)
        key = hits * np.int32(_HIT) + order
        last = xp.maximum(self._smallest(key, main, n), np.int32(0))
        rounds = last // np.int32(_HIT)
        goes = main & (key <= last)
        main &= ~goes
        passed = main & (order < last - rounds * np.int32(_HIT))
        hits -= (rounds + passed) * main
        hits *= ~goes
        xp.copyto(entered, now, where=passed)

    def _order(self, entered: Array) -> Array:
        """int32, above 0 and below _HIT: a sort key, lowest for the oldest page; of pages that entered together, for the lower one."""
        end = entered.shape[2]
        age = self.ops.xp.minimum(np.int32(self._n_runs) - entered, np.int32(self._oldest))
        return (np.int32(self._oldest) - age) * np.int32(self.shape.n_pages + 1) + self._pages[:end]

    def _smallest(self, values: Array, among: Array, n: Array) -> Array:
        """int32 [layer, head, 1]: the n-th smallest value of each head where `among` is set. Below all values where n < 1, above all where
        there are fewer than n."""
        xp = self.ops.xp
        in_order = xp.sort(xp.where(among, values, np.int32(_NONE)), axis=2)
        rank = xp.minimum(xp.maximum(n, np.int32(1)), np.int32(values.shape[2])) - np.int32(1)
        return xp.where(n > 0, xp.take_along_axis(in_order, rank, axis=2), np.int32(-1))

    def forget(self, pages: np.ndarray) -> None:
        super().forget(pages)
        pages = self.ops.upload(pages)
        for array in (self._small, self._main, self._hits, self._ghosts):
            array[:, :, pages] = 0
