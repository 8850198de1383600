"""Rankings: the best pages at home and the worst in the arena, as many as a plan looks at. The planner sees no other scores."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from edgekv.arrays.topk import largest, listed_largest, smallest
from edgekv.pages.residency import Residency, State, pins_of


class Top(Struct, frozen=True):
    """Pages and their values."""

    ids: np.ndarray
    """int64 [n]"""
    values: np.ndarray
    """float32 [n]"""

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, which) -> Top:
        return Top(self.ids[which], self.values[which])

    @classmethod
    def none(cls) -> Top:
        return cls(np.empty(0, np.int64), np.empty(0, np.float32))


class Home(Protocol):
    """The HOME pages that a plan has not promoted yet."""

    end: int
    mask: np.ndarray
    """bool [layer, head, :end]"""

    def holds(self, ids: np.ndarray) -> np.ndarray:
        """bool [n]: whether it has each of these."""


class Ranking(Protocol):
    @property
    def n(self) -> int:
        """RESIDENT pages that are not pinned."""

    @property
    def mean(self) -> float:
        """Mean score of those n pages; 0 if there are none."""

    def n_below(self, value: float) -> int:
        """How many of those n pages have a lower score; a lower bound where more do than were listed."""

    def coldest(self, n: int) -> Top:
        """Those with the lowest scores, lowest first; of equal ones the lower id first."""

    def hottest(self, n: int, least: float, home: Home) -> Top:
        """The n pages of `home` with the highest scores above `least`, highest first; of equal ones the lower id first. `home` and `least`
        must be the same in each call."""

    def fresh(self, residency: Residency, pins: np.ndarray | None) -> Ranking:
        """The ranking without the residents that have left or were pinned since it was made."""


class HostRanking:
    """Ranks scores in host memory (float32 [layer, head, page]; None: all zero) when it is asked. The scores must not change meanwhile."""

    def __init__(self, scores: np.ndarray | None, pins: np.ndarray | None, residency: Residency):
        held = residency.state == State.RESIDENT
        if pins is not None:  # pins for all heads are few pages: touch only these
            held[np.s_[:, :, np.flatnonzero(pins)] if pins.ndim == 1 else pins] = False
        self._scores = scores
        self._shape = residency.shape
        self._resident = np.flatnonzero(held)
        self._values = np.zeros(len(self._resident), np.float32) if scores is None else scores.reshape(-1)[self._resident]
        self._candidates: tuple[np.ndarray, np.ndarray] | None = None
        self.n = len(self._resident)
        self.mean = float(self._values.mean()) if self.n else 0.0

    def n_below(self, value: float) -> int:
        return int(np.count_nonzero(self._values < value))

    def coldest(self, n: int) -> Top:
        if n == 1 and self.n:  # every plan asks this first
            first = int(self._values.argmin())
            return Top(self._resident[first : first + 1], self._values[first : first + 1])
        at = smallest(self._values, n)
        return Top(self._resident[at], self._values[at])

    def hottest(self, n: int, least: float, home: Home) -> Top:
        if self._scores is None or n <= 0:
            return Top.none()
        if self._candidates is None:
            scores = self._scores[:, :, : home.end]
            found = (scores > least) & home.mask
            self._candidates = scores[found], np.flatnonzero(found)
        values, at = self._candidates
        best = largest(values, n)
        return Top(self._shape.widen(at[best], home.end), values[best])

    def fresh(self, residency: Residency, pins: np.ndarray | None) -> HostRanking:
        return self


class ListedRanking(Struct, frozen=True):
    """A ranking from a device's lists of the best and the worst pages, each in any order. They may be some runs old."""

    best: Top
    """Pages that were HOME, not pinned and had a score above zero."""
    worst: Top
    """Pages that were RESIDENT and not pinned."""
    n: int
    mean: float

    def n_below(self, value: float) -> int:
        return int(np.count_nonzero(self.worst.values < value))

    def coldest(self, n: int) -> Top:
        return self.worst[listed_largest(-self.worst.values, self.worst.ids, n)]

    def hottest(self, n: int, least: float, home: Home) -> Top:
        found = self.best[self.best.values > least]
        found = found[home.holds(found.ids)]
        return found[listed_largest(found.values, found.ids, n)]

    def fresh(self, residency: Residency, pins: np.ndarray | None) -> ListedRanking:
        ids = self.worst.ids
        still = residency.state.reshape(-1)[ids] == State.RESIDENT
        if pins is not None:
            still &= ~pins_of(pins, ids, residency.shape.n_pages)
        return replace(self, worst=self.worst[still], n=self.n - int(np.count_nonzero(~still)))
