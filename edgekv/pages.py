"""PageTable: the sole owner of where each page lives. Metadata only; the bytes are the tiers' business.

A page's base is the state of its cells, the same for all rows and heads: FREE, FILLING (cells changed in the last step) or HOME (settled).
A settled page can have a slot besides: MOVING while the copy is under way, RESIDENT when it is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from edgekv.errors import TierError
from edgekv.observation import Shape


class State(IntEnum):
    """Where a page is in its life."""

    FREE = 0
    FILLING = 1
    HOME = 2
    RESIDENT = 3
    MOVING = 4


class Reason(IntEnum):
    """Why a page came to the state it is in."""

    EMPTY = 0
    STORED = 1
    SETTLED = 2
    HOT = 3
    PINNED = 4
    WANTED = 5
    OUTRANKED = 6
    BUDGET = 7
    CHANGED = 8
    FAILED = 9

    @property
    def description(self) -> str:
        return _REASONS[self]


_REASONS = {
    Reason.EMPTY: "holds no tokens",
    Reason.STORED: "tokens are being stored in it",
    Reason.SETTLED: "no policy asked for it yet",
    Reason.HOT: "its score is high",
    Reason.PINNED: "it is pinned",
    Reason.WANTED: "prefetch expects it to be wanted",
    Reason.OUTRANKED: "another page is worth more",
    Reason.BUDGET: "the budget became smaller",
    Reason.CHANGED: "its tokens changed while it was being copied",
    Reason.FAILED: "its copy failed",
}


@dataclass(frozen=True)
class Residency:
    """A read-only view of a PageTable, current while the table is."""

    shape: Shape
    state: np.ndarray
    """uint8 State [row, head, page]."""
    slot: np.ndarray
    """int32 [row, head, page]: the slot a RESIDENT page has or a MOVING one will have; -1: none."""
    owner: np.ndarray
    """int64 [slot]: flat id of the page in it or on the way to it; -1: free."""
    n_free: int
    n_used_end: int
    """From this page on all are FREE."""

    @property
    def n_slots(self) -> int:
        return len(self.owner)

    @property
    def resident(self) -> np.ndarray:
        """int64 [n]: ids of the RESIDENT pages, in the order of their slots."""
        held = self.owner[self.owner >= 0]
        return held[self.state.reshape(-1)[held] == State.RESIDENT]


class PageTable:
    """State, slot and reason of every page; slots and who has them. Methods take arrays of flat ids (`Shape.ids`), each id once."""

    def __init__(self, shape: Shape, n_slots: int = 0):
        self.shape = shape
        self.reasons = np.zeros(len(Reason), np.int64)
        """Transitions so far, by reason."""
        self.n_used_end = 0
        self._base = np.zeros(shape.n_pages, np.uint8)
        self._filling = np.empty(0, np.int64)
        self._state = np.zeros(shape.axes, np.uint8)
        self._why = np.zeros(shape.axes, np.uint8)
        self._slot = np.full(shape.axes, -1, np.int32)
        self._owner = np.empty(0, np.int64)
        self._stale = np.empty(0, bool)  # [slot]: its page changed under the copy
        self._free = np.empty(0, np.int32)  # a stack
        self._n_free = 0
        self._limit = 0  # slots that may be handed out; below n_slots only while the arena shrinks under copies
        self._exists = shape.exists.astype(np.uint8)[:, :, None]
        self._flat_state, self._flat_slot, self._flat_why = (a.reshape(-1) for a in (self._state, self._slot, self._why))
        self._read_only = tuple(_read_only(a) for a in (self._state, self._slot))
        self.resize(n_slots, None)

    # ---- what it says --------------------------------------------------------------------------------------------------------

    @property
    def n_slots(self) -> int:
        """Slots of the arena, also those that wait for a copy to end before they go."""
        return len(self._owner)

    @property
    def n_free(self) -> int:
        return self._n_free

    @property
    def residency(self) -> Residency:
        return Residency(self.shape, *self._read_only, _read_only(self._owner), self._n_free, self.n_used_end)

    def states(self, ids: np.ndarray) -> np.ndarray:
        """uint8 [n]: State of pages."""
        return self._flat_state[ids]

    def counts(self) -> dict[State, int]:
        """Pages by state, over the heads that exist."""
        return {state: int(row.sum()) for state, row in zip(State, self.why())}

    def why(self) -> np.ndarray:
        """int64 [State, Reason]: pages in each state, by the reason that brought them there."""
        both = self._state[self.shape.exists] * np.uint8(len(Reason)) + self._why[self.shape.exists]
        return np.bincount(both.reshape(-1), minlength=len(State) * len(Reason)).reshape(len(State), len(Reason))

    def explain(self, row: int, head: int, page: int) -> tuple[State, Reason, int]:
        """State, reason and slot (-1: none) of one page."""
        at = row, head, page
        return State(self._state[at]), Reason(self._why[at]), int(self._slot[at])

    # ---- cells change --------------------------------------------------------------------------------------------------------

    def change(self, pages: np.ndarray, empty: np.ndarray) -> np.ndarray:
        """Cells of these pages (int [n], ascending, each once) changed in this step; empty (bool [n]) ones hold no token now.

        They leave their slots and are FILLING until a step does not change them. A MOVING one keeps its slot until its copy ends, and
        is then dropped. Returns the pages (int [n]) whose earlier contents are gone: those that were settled, or are empty.
        """
        any_empty = bool(empty.any())
        if not any_empty and np.array_equal(pages, self._filling):
            return pages[:0]
        settled = self._filling[np.isin(self._filling, pages, invert=True)]
        self._base[settled] = State.HOME
        self._rebase(settled, State.HOME, Reason.SETTLED)

        before = self._base[pages]
        forgotten = pages[(before == State.HOME) | (before == State.FILLING) & empty]
        if (before == State.HOME).any():
            self._evict(pages[before == State.HOME])
        filling = pages[~empty] if any_empty else pages
        self._base[filling] = State.FILLING
        self._rebase(filling[self._base_differs(filling, State.FILLING)], State.FILLING, Reason.STORED)
        if any_empty:
            self._base[pages[empty]] = State.FREE
            self._rebase(pages[empty], State.FREE, Reason.EMPTY)
        self._filling = np.array(filling, np.int64)
        used = np.flatnonzero(self._base)
        self.n_used_end = int(used[-1]) + 1 if len(used) else 0
        return forgotten
