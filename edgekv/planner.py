"""What should move: scores + pins + wanted + residency + limits -> MigrationPlan. Pure; it changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekv.errors import ConfigError
from edgekv.kernels.topk import largest, smallest
from edgekv.observation import Shape
from edgekv.residency import Reason, Residency, State


@dataclass(frozen=True)
class Limits:
    """How eager a plan is."""

    max_moves: int = 4096
    """Promotions in one plan."""
    max_wanted: int = 64
    """Of these, prefetched pages."""
    margin: float = 1.25
    """A page takes the slot of another only if its score is more than this times the other's ..."""
    gain: float = 1e-4
    """... plus this, in attention mass per token: a copy has to pay."""
    cold: float = 0.1
    """A prefetched page may take the slot of a page whose score is below this share of the mean over residents that are not
    pinned."""

    def __post_init__(self) -> None:
        if min(self.max_moves, self.max_wanted, self.gain, self.cold) < 0 or self.margin < 1:
            raise ConfigError(f"{self} is not a plan's limits: no number may be negative, and the margin must be at least 1")


@dataclass(frozen=True)
class MigrationPlan:
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


def plan(scores: np.ndarray | None, pinned: np.ndarray | None, wanted: np.ndarray, residency: Residency,
         limits: Limits) -> MigrationPlan:
    """All rows and heads compete for one pool of slots; MOVING pages are neither promoted nor demoted, pinned ones not demoted.

    scores: float32 [row, head, page], None: all zero. pinned: bool [page] or [row, head, page], or None. wanted: int64 ids, the
    most wanted first. Three classes of HOME pages, in this order, each taking what slots the one before leaves:

    1. pinned: free slots, then those of the coldest residents;
    2. wanted: free slots, then those of clearly colder residents (`Limits.cold`);
    3. score above zero, the highest first: free slots, then the i-th best of them against the i-th coldest resident, by a margin.
    """
    end = residency.n_used_end
    if not residency.n_slots or not end:
        return MigrationPlan(_NO_IDS, np.empty(0, np.uint8), _NO_IDS)
    held = residency.state == State.RESIDENT
    if pinned is not None:  # few pages, where they are the same for all heads: look only at these
        held[np.s_[:, :, np.flatnonzero(pinned)] if pinned.ndim == 1 else pinned] = False
    resident = np.flatnonzero(held)
    values = np.zeros(len(resident), np.float32) if scores is None else scores.reshape(-1)[resident]
    mean = float(values.mean()) if len(values) else 0.0
    n_free, n_room = residency.n_free, residency.n_free + len(resident)

    home = _Home(residency, end)
    pins = home.pinned(pinned)
    n_unplaced = max(0, len(pins) - n_room)
    pins = pins[: min(n_room, limits.max_moves)]
    home.strike(pins)

    n_clear = min(n_room, n_free + int(np.count_nonzero(values < limits.cold * mean))) - len(pins)
    asked = home.still(wanted)[: max(0, min(limits.max_wanted, n_clear, limits.max_moves - len(pins)))]
    home.strike(asked)

    n_done = len(pins) + len(asked)
    n_left = min(n_room, limits.max_moves) - n_done
    least = limits.margin * float(values.min()) + limits.gain if len(values) and n_free <= n_done else 0.0
    candidates = home.above(least, scores if n_left > 0 else None)
    hot, coldest = _swap(candidates.scores, values, n_free, n_done, n_left, limits)
    hot = candidates.ids(hot)

    promote = np.concatenate((pins, asked, hot))
    reasons = np.repeat(np.array([Reason.PINNED, Reason.WANTED, Reason.HOT], np.uint8), [len(pins), len(asked), len(hot)])
    return MigrationPlan(promote, reasons, resident[coldest], n_unplaced)


def _swap(scores: np.ndarray, values: np.ndarray, n_free: int, n_done: int, n_left: int,
          limits: Limits) -> tuple[np.ndarray, np.ndarray]:
    """(indices of the candidates to promote, by falling score; indices of the residents to demote, by rising value), n_done
    promotions before them included. The i-th candidate beyond the free slots goes against the i-th resident beyond those that had
    to go."""
    n_free_left, n_gone = max(0, n_free - n_done), max(0, n_done - n_free)
    n_swaps = 256  # most plans move few pages: put more in order only where all of these swap
    while True:
        coldest = smallest(values, n_gone + n_swaps)
        needs = values[coldest[n_gone:]] * np.float32(limits.margin) + np.float32(limits.gain)
        needs = np.concatenate((np.zeros(n_free_left, np.float32), needs))[:n_left]
        best = largest(scores, len(needs))
        best = best[scores[best] > needs[: len(best)]]
        if len(best) == n_left or len(best) < n_free_left + n_swaps:
            return best, coldest[: max(0, n_done + len(best) - n_free)]
        n_swaps *= 8


@dataclass(frozen=True)
class _Candidates:
    scores: np.ndarray
    """float32 [n]"""
    _at: np.ndarray
    _end: int
    _shape: Shape

    def ids(self, chosen: np.ndarray) -> np.ndarray:
        """Flat ids of some of them: they are few, and the divisions slow."""
        return self._shape.widen(self._at[chosen], self._end)


class _Home:
    """The HOME pages that a plan has not promoted yet."""

    def __init__(self, residency: Residency, end: int):
        self._shape = residency.shape
        self._end = end
        self._mask = residency.state[:, :, :end] == State.HOME

    def pinned(self, pins: np.ndarray | None) -> np.ndarray:
        if pins is None:
            return _NO_IDS
        if pins.ndim == 1:
            pages = np.flatnonzero(pins[: self._end])
            rows, heads, at = np.nonzero(self._mask[:, :, pages])
            return self._shape.ids(rows, heads, pages[at])
        return self._shape.widen(np.flatnonzero(self._mask & pins[:, :, : self._end]), self._end)

    def still(self, ids: np.ndarray) -> np.ndarray:
        """Those of the ids that are HOME, in the same order."""
        rows, heads, pages = self._shape.places(ids)
        inside = pages < self._end
        return ids[inside][self._mask[rows[inside], heads[inside], pages[inside]]]

    def strike(self, ids: np.ndarray) -> None:
        if len(ids):
            self._mask[self._shape.places(ids)] = False

    def above(self, least: float, scores: np.ndarray | None) -> _Candidates:
        """The pages whose score is above `least`."""
        if scores is None:
            return _Candidates(np.empty(0, np.float32), _NO_IDS, self._end, self._shape)
        scores = scores[:, :, : self._end]
        found = (scores > least) & self._mask
        return _Candidates(scores[found], np.flatnonzero(found), self._end, self._shape)
