"""A policy for each stream."""

import copy
from collections.abc import Callable

import numpy as np

from edgekv.arrays.ops import Array, Ops
from edgekv.pages.observation import Observation
from edgekv.pages.shape import PageShape
from edgekv.policies.base import Policy, Settings


class ByStream(Policy):
    """Each stream has a policy of its own, which sees the stream's tokens alone: what a page is worth does not depend on other sequences, and no time
    passes for a stream without tokens.

    make: a policy for the pages of one stream, with an array of zeros to keep its scores in. Pins are then [layer, head, page] if those of any stream
    are.
    """

    def __init__(self, shape: PageShape, ops: Ops, make: Callable[[PageShape, Array], Policy], scores: Array | None = None):
        super().__init__(shape, Settings(), ops)
        one = PageShape(shape.n_layers, shape.n_heads, shape.pages_per_stream, shape.page_tokens, exists=shape.exists)
        all_scores = ops.zeros(shape.axes, np.float32) if scores is None else scores
        self._parts = [slice(first, first + one.n_pages) for first in range(0, shape.n_pages, one.n_pages)]
        self._of_stream = [all_scores[:, :, part] for part in self._parts]
        self.members = [make(one, scores) for scores in self._of_stream]
        first = self.members[0]
        self.scoring, self.adds_up, self.split = first.scoring, first.adds_up, first.split
        self.clairvoyant = first.clairvoyant
        self._scores = all_scores if first.scores is not None else None

    @property
    def pins(self) -> np.ndarray | None:
        found = [member.pins for member in self.members]
        if all(pins is None for pins in found):
            return None
        whole = np.zeros(self.shape.axes if any(pins is not None and pins.ndim > 1 for pins in found) else self.shape.n_pages, bool)
        for part, pins in zip(self._parts, found, strict=True):
            if pins is not None:
                whole[..., part] = pins
        return whole

    @property
    def sinks(self) -> int | None:
        return self.members[0].sinks

    def update(self, observation: Observation) -> None:
        for stream, (part, member) in enumerate(zip(self._parts, self.members, strict=True)):
            mine = observation.of_stream(stream, part)
            if len(mine.changed) or mine.n_tokens:
                member.update(mine)

    def take_over(self, stream: int, source: int) -> None:
        """The stream's policy becomes one that knows all that its source's knows, scores, counts, draws, queues, and decides as that does."""
        mine, theirs = self._of_stream[stream], self._of_stream[source]
        mine[...] = theirs
        both = (self.ops, self.members[source].shape)  # what is no state stays shared, and scores stay in their place
        self.members[stream] = copy.deepcopy(self.members[source], {id(theirs): mine} | {id(one): one for one in both})

    def most(self, n_budget: int) -> int:
        return self.members[0].most(n_budget)

    def forget(self, pages: np.ndarray) -> None:
        for part, member in zip(self._parts, self.members, strict=True):
            mine = pages[(pages >= part.start) & (pages < part.stop)]
            if len(mine):
                member.forget(mine - part.start)
