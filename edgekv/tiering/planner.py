"""Plans moves: a ranking by score + pins + wanted + residency + limits -> MigrationPlan. Pure; it changes nothing."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from edgekv.arrays.rank import Ranking
from edgekv.common.errors import ConfigError
from edgekv.pages.residency import Reason, Residency, State


class MoveLimits(Struct, frozen=True):
    """Limits of a plan's eagerness."""

    max_moves: int = 4096
    """Promotions in one plan."""
    max_wanted: int = 64
    """Prefetched pages among these."""
    margin: float = 1.25
    """A page takes the slot of another only if its score is more than this times the other's ..."""
    gain: float = 1e-4
    """... plus this, in attention mass per token, because a copy has a price."""
    cold: float = 0.1
    """A prefetched page may take the slot of a page whose score is below this share of the mean over residents that are not
    pinned."""
    swap: bool = True
    """False: a page that has a slot keeps it. Where every page is read for each token, a swap costs a copy and gains nothing."""
    fill: bool = False
    """Fill slots that nothing asked for with any pages: from the first page on, evenly over layers and heads."""

    def __post_init__(self) -> None:
        if min(self.max_moves, self.max_wanted, self.gain, self.cold) < 0 or self.margin < 1:
            raise ConfigError(f"{self} are not valid limits of a plan: no number may be negative, and the margin must be at least 1")

    @property
    def n_ranked(self) -> int:
        """How many pages of each kind a plan looks at: so many can move, and so many wanted pages can take slots."""
        return self.max_moves + self.max_wanted


class MigrationPlan(Struct, frozen=True):
    """Pages to move, the most urgent first. A promotion uses a free slot while there is one, then that of the next page of
    `demote`."""

    promote: np.ndarray
    """int64 ids of HOME pages."""
    promote_reasons: np.ndarray
    """uint8 Reason of each."""
    demote: np.ndarray
    """int64 ids of RESIDENT pages."""
    n_unplaced: int = 0
    """Pinned pages for which there is no slot."""

    def __bool__(self) -> bool:
        return bool(len(self.promote) or len(self.demote))


_NO_IDS = np.empty(0, np.int64)


def decide(ranking: Ranking, pinned: np.ndarray | None, wanted: np.ndarray, residency: Residency, limits: MoveLimits) -> MigrationPlan:
    """All rows and heads compete for one pool of slots; MOVING pages are neither promoted nor demoted, pinned ones not demoted.

    ranking: by score, of this residency or one some runs ago. pinned: bool [page] or [layer, head, page], or None. wanted: int64
    ids, the most wanted first. Four classes of HOME pages, in this order, each taking what slots the one before leaves:

    1. pinned: free slots, then those of the coldest residents;
    2. wanted: free slots, then those of clearly colder residents (`MoveLimits.cold`);
    3. score above zero, the highest first: free slots, then the i-th best of them against the i-th coldest resident, by a margin;
    4. with `MoveLimits.fill`, any: free slots.

    Without `MoveLimits.swap` there are free slots only.
    """
    end = residency.n_used_end
    if not residency.n_slots or not end or not (limits.swap or residency.n_free):
        return MigrationPlan(_NO_IDS, np.empty(0, np.uint8), _NO_IDS)
    ranking = ranking.fresh(residency, pinned)
    n_free, n_held = residency.n_free, ranking.n if limits.swap else 0
    n_room = n_free + n_held

    home = _Home(residency, end)
    pins = home.pinned(pinned)
    n_unplaced = max(0, len(pins) - n_room)
    pins = pins[: min(n_room, limits.max_moves)]
    home.strike(pins)

    n_colder = min(n_held, ranking.n_below(limits.cold * ranking.mean)) if len(wanted) else 0
    n_clear = min(n_room, n_free + n_colder) - len(pins)
    asked = home.still(wanted)[: max(0, min(limits.max_wanted, n_clear, limits.max_moves - len(pins)))]
    home.strike(asked)

    n_done = len(pins) + len(asked)
    hot, cold = _swap(ranking, home, n_free, n_held, n_done, limits)

    room = _NO_IDS
    if limits.fill:
        home.strike(hot)
        room = home.first(min(n_free, limits.max_moves) - n_done - len(hot))

    promote = np.concatenate((pins, asked, hot, room))
    reasons = np.repeat(np.array([Reason.PINNED, Reason.WANTED, Reason.HOT, Reason.ROOM], np.uint8),
                        [len(pins), len(asked), len(hot), len(room)])
    return MigrationPlan(promote, reasons, cold, n_unplaced)


def _swap(ranking: Ranking, home: _Home, n_free: int, n_held: int, n_done: int, limits: MoveLimits) -> tuple[np.ndarray, np.ndarray]:
    """Returns (ids to promote, by falling score; ids to demote, by rising score). The ids to demote include those that make room for the
    n_done promotions that come first. The i-th candidate beyond the free slots competes with the i-th resident beyond those that had
    to go."""
    n_left = min(n_free + n_held, limits.max_moves) - n_done
    n_free_left, n_gone = max(0, n_free - n_done), max(0, n_done - n_free)
    least = 0.0
    if n_held and not n_free_left and len(coldest := ranking.coldest(1)):
        least = limits.margin * float(coldest.values[0]) + limits.gain
    n_swaps = min(256, n_held)  # most plans move few pages: sort more only if all of these swap
    while True:
        cold = ranking.coldest(min(n_held, n_gone + n_swaps))
        needs = cold.values[n_gone:] * np.float32(limits.margin) + np.float32(limits.gain)
        needs = np.concatenate((np.zeros(n_free_left, np.float32), needs))[: max(0, n_left)]
        best = ranking.hottest(len(needs), least, home)
        best = best[best.values > needs[: len(best)]]
        if len(best) == n_left or len(best) < n_free_left + n_swaps or n_swaps >= n_held:
            return best.ids, cold.ids[: max(0, n_done + len(best) - n_free)]
        n_swaps = min(8 * n_swaps, n_held)


class _Home:
    """The HOME pages that a plan has not promoted yet."""

    def __init__(self, residency: Residency, end: int):
        self._shape = residency.shape
        self.end = end
        self.mask = residency.state[:, :, :end] == State.HOME

    def pinned(self, pins: np.ndarray | None) -> np.ndarray:
        if pins is None:
            return _NO_IDS
        if pins.ndim == 1:
            pages = np.flatnonzero(pins[: self.end])
            rows, heads, at = np.nonzero(self.mask[:, :, pages])
            return self._shape.ids(rows, heads, pages[at])
        return self._shape.widen(np.flatnonzero(self.mask & pins[:, :, : self.end]), self.end)

    def holds(self, ids: np.ndarray) -> np.ndarray:
        rows, heads, pages = self._shape.places(ids)
        inside = pages < self.end
        return inside & self.mask[rows, heads, np.where(inside, pages, 0)]

    def still(self, ids: np.ndarray) -> np.ndarray:
        """The ids that are HOME, in the same order."""
        return ids[self.holds(ids)]

    def first(self, n: int) -> np.ndarray:
        """n of them, page by page, each of all rows and heads: layers keep equal shares."""
        if n <= 0:
            return _NO_IDS
        end = int(np.searchsorted(np.cumsum(np.count_nonzero(self.mask, axis=(0, 1))), n)) + 1  # this many pages hold n or more
        pages, rows, heads = np.nonzero(self.mask[:, :, :end].transpose(2, 0, 1))
        return self._shape.ids(rows[:n], heads[:n], pages[:n])

    def strike(self, ids: np.ndarray) -> None:
        if len(ids):
            self.mask[self._shape.places(ids)] = False
