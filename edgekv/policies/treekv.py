"""Neighbours compared in turn: dense near the end, ever sparser towards the beginning."""

import math

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.common.enums import Split
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.age import KEPT, by_page, newest
from edgekv.policies.base import Policy, Settings

LEAST = 1e-12
"""The least score of a kept page; others have 0."""


class TreeKv(Policy):
    """TreeKV, "Smooth Key-Value Cache Compression with Tree Structures" (arXiv:2501.04987): when the cache is full, two kept neighbours are
    compared, and the one with less attention goes. The next comparison takes the pair after them; after the last pair it begins at the left
    again. So an old page has survived many comparisons, like the top of a tree, a new page few:

        score = mean mass per token since the page is known + LEAST;  a page that went: 0;  each stream's newest page: KEPT

    The source compares tokens, this policy pages. Each head keeps `n_budget` pages: the newest of each stream, which is still being filled,
    and the survivors. Where the budget is not known, nothing goes.
    """

    scoring = True
    split = Split.UNIFORM

    def __init__(self, shape: PageShape, settings: Settings, ops: Ops, scores: Array | None = None):
        super().__init__(shape, settings, ops, scores)
        self._sums, self._kept = self._remember(), self._remember()
        self._hand = ops.zeros((*shape.axes[:2], 1), np.int32)  # kept pages before the next pair
        self._pages = ops.upload(np.arange(shape.n_pages, dtype=np.int32))
        self._n_tokens = np.zeros(shape.n_pages)
        self._known = np.zeros(shape.n_pages, bool)
        self._most = 0  # pages that a head keeps, at most

    def update(self, observation: Observation) -> None:
        if not observation.observed:
            return
        end, shape, ops = observation.n_used_end, self.shape, self.ops
        positions, last = observation.page_positions, newest(shape, observation)
        in_use, tail = positions >= 0, (positions >= 0) & (positions == by_page(shape, last))
        new = in_use & ~tail & ~self._known
        self._known |= new
        self._n_tokens[in_use] += observation.n_tokens
        sums, kept = self._sums[:, :, :end], self._kept[:, :, :end]
        sums += observation.mass_sum[:, :, :end]
        means = sums * ops.upload((1 / np.maximum(self._n_tokens[:end], 1)).astype(np.float32))
        if new.any():
            kept += ops.upload(new[:end].astype(np.float32))
        self._most = min(self._most + int(new.sum()), int(self._known.sum()))
        capacity = max(1, observation.n_budget - int(np.count_nonzero(last >= 0)))
        if observation.n_budget and self._most > capacity:
            for _ in range(1 + math.ceil(math.log2(self._most / capacity))):  # the first goes to the end, each further one halves the rest
                self._go(kept, means, capacity)
            self._most = capacity
        worth = kept * (means + np.float32(LEAST))
        ops.xp.add(worth, ops.upload(np.where(tail[:end], np.float32(KEPT), np.float32(0))), out=self._scores[:, :, :end])

    def _go(self, kept: Array, worth: Array, capacity: int) -> None:
        """Compare the pairs of each head from the hand on, until `capacity` pages are left or the end is reached."""
        xp, end = self.ops.xp, kept.shape[2]
        pages, is_kept = self._pages[:end], kept > 0
        in_order = xp.sort(xp.where(is_kept, pages, np.int32(end - 1)), axis=2)
        rank = xp.cumsum(is_kept, axis=2, dtype=np.int32) - np.int32(1)
        n = rank[:, :, end - 1 :] + np.int32(1)
        self._hand *= (self._hand + np.int32(1) < n) | (n <= capacity)
        n_go = xp.maximum(xp.minimum(n - np.int32(capacity), (n - self._hand) // np.int32(2)), np.int32(0))
        behind = rank - self._hand
        left = behind % np.int32(2) < 1
        partner = xp.take_along_axis(in_order, xp.minimum(xp.maximum(rank + xp.where(left, np.int32(1), np.int32(-1)), 0), end - 1), axis=2)
        other = xp.take_along_axis(worth, partner, axis=2)
        goes = is_kept & (behind >= 0) & (behind < n_go * np.int32(2)) & ((worth < other) | ((worth <= other) & left))
        kept *= ~goes
        self._hand += n_go

    def forget(self, pages: np.ndarray) -> None:
        super().forget(pages)
        self._known[pages] = False
        self._n_tokens[pages] = 0
