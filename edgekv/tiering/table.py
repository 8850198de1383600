"""PageTable, the sole owner of every page's place. It holds metadata; the tiers hold the bytes.

A page's base is the state of its cells, the same for all rows and heads: FREE, FILLING (cells changed since the run before) or HOME
(settled). A settled page can have a slot besides: MOVING while the copy is under way, RESIDENT when it is complete.
"""

import numpy as np

from edgekv.arrays.topk import smallest
from edgekv.common.errors import TierError
from edgekv.pages.residency import Reason, Residency, State, pins_of
from edgekv.pages.shape import PageShape


class PageTable:
    """State, slot and reason of every page, and the page in every slot. Methods take arrays of flat ids (`PageShape.ids`), each id
    once."""

    def __init__(self, shape: PageShape, n_slots: int = 0):
        self.shape = shape
        self.reasons = np.zeros(len(Reason), np.int64)
        """Transitions so far, by reason."""
        self.n_invalidated = 0
        """Resident pages so far that lost their slot because their cells changed."""
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
        self._seen_state, self._seen_slot = _read_only(self._state), _read_only(self._slot)
        self.resize(n_slots, None)

    # ---- reports --------------------------------------------------------------------------------------------------------

    @property
    def n_slots(self) -> int:
        """Slots of the arena, with the slots that go as soon as a copy into them ends."""
        return len(self._owner)

    @property
    def n_free(self) -> int:
        return self._n_free

    @property
    def residency(self) -> Residency:
        return Residency(self.shape, self._seen_state, self._seen_slot, _read_only(self._owner), self._n_free, self.n_used_end)

    def states(self, ids: np.ndarray) -> np.ndarray:
        """uint8 [n]: State of pages."""
        return self._flat_state[ids]

    def in_use(self, pages: np.ndarray) -> np.ndarray:
        """bool [n]: the pages (of all rows and heads) hold tokens."""
        return self._base[pages] != State.FREE

    def counts(self) -> dict[State, int]:
        """Pages by state, over the heads that exist."""
        return {state: int(row.sum()) for state, row in zip(State, self.why())}

    def why(self) -> np.ndarray:
        """int64 [State, Reason]: pages in each state, by the reason that brought them there."""
        both = self._state[self.shape.exists] * np.uint8(len(Reason)) + self._why[self.shape.exists]
        return np.bincount(both.reshape(-1), minlength=len(State) * len(Reason)).reshape(len(State), len(Reason))

    # ---- cells change --------------------------------------------------------------------------------------------------------

    def change(self, pages: np.ndarray, empty: np.ndarray) -> np.ndarray:
        """Cells of these pages (int [n], ascending, each once) changed since the last run; empty (bool [n]) ones hold no token now.

        They leave their slots and are FILLING until a run finds them unchanged. A MOVING one keeps its slot until its copy ends,
        and is dropped then. Returns the pages (int [n]) whose earlier contents are gone: those that were settled, or are empty.
        """
        any_empty = bool(empty.any())
        if not any_empty and np.array_equal(pages, self._filling):
            return pages[:0]  # most runs: the same tail page
        settled = self._filling[np.isin(self._filling, pages, invert=True)]
        self._rebase(settled, State.HOME, Reason.SETTLED)
        before = self._base[pages]
        self._evict(pages[before == State.HOME])
        self._rebase(pages[~empty & (before != State.FILLING)], State.FILLING, Reason.STORED)
        self._rebase(pages[empty & (before != State.FREE)], State.FREE, Reason.EMPTY)
        self._filling = np.array(pages[~empty], np.int64)
        used = np.flatnonzero(self._base)
        self.n_used_end = int(used[-1]) + 1 if len(used) else 0
        return pages[(before == State.HOME) | (before == State.FILLING) & empty]

    def _rebase(self, pages: np.ndarray, state: State, reason: Reason) -> None:
        """A new base for pages of which none is RESIDENT."""
        self._base[pages] = state
        stays = self._state[:, :, pages] == State.MOVING
        self._state[:, :, pages] = np.where(stays, State.MOVING, self._exists * np.uint8(state))
        self._why[:, :, pages] = np.where(stays, self._why[:, :, pages], self._exists * np.uint8(reason))
        self.reasons[reason] += len(pages) * self.shape.n_existing_heads

    def _evict(self, pages: np.ndarray) -> None:
        """Settled pages lose their slots, or, if a copy is under way, their future slots."""
        part = self._state[:, :, pages]
        rows, heads, at = np.nonzero(part == State.MOVING)
        self._stale[self._slot[rows, heads, pages[at]]] = True
        rows, heads, at = np.nonzero(part == State.RESIDENT)
        ids = self.shape.ids(rows, heads, pages[at])
        self.n_invalidated += len(ids)
        self._vacate(ids)

    # ---- pages move ----------------------------------------------------------------------------------------------------------

    def reserve(self, ids: np.ndarray, reason: Reason | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """HOME -> MOVING for as many of these pages as there are free slots, the first of them. `reason`: one, or one for each.

        Returns (ids int64 [m], slots int32 [m]) with m <= n: not fitting is an answer. Raises TierError for a page that is not
        HOME.
        """
        self._require(ids, State.HOME, "get a slot")
        m = min(len(ids), self._n_free)
        ids = ids[:m]
        slots = self._free[self._n_free - m : self._n_free][::-1].copy()
        self._n_free -= m
        self._owner[slots] = ids
        self._stale[slots] = False
        self._flat_slot[ids] = slots
        self._enter(ids, State.MOVING, reason if isinstance(reason, Reason) else reason[:m])
        return ids, slots

    def commit(self, ids: np.ndarray) -> np.ndarray:
        """MOVING -> RESIDENT, their copies being complete; a page that changed under its copy is cancelled instead.
        bool [n]: which became resident."""
        self._require(ids, State.MOVING, "become resident")
        fresh = ~self._stale[self._flat_slot[ids]]
        done = ids[fresh]
        self._flat_state[done] = State.RESIDENT
        self._count(self._flat_why[done])
        self._abandon(ids[~fresh], Reason.CHANGED)
        return fresh

    def cancel(self, ids: np.ndarray, reason: Reason = Reason.FAILED) -> None:
        """MOVING -> the place of the page's cells, because its copy failed."""
        self._require(ids, State.MOVING, "be cancelled")
        stale = self._stale[self._flat_slot[ids]]
        self._abandon(ids[stale], Reason.CHANGED)
        self._abandon(ids[~stale], reason)

    def _abandon(self, ids: np.ndarray, reason: Reason) -> None:
        self._vacate(ids)
        self._enter(ids, self._base[ids % self.shape.n_pages], reason)

    def release(self, ids: np.ndarray, reason: Reason = Reason.OUTRANKED) -> None:
        """RESIDENT -> HOME; the slots are free at once."""
        self._require(ids, State.RESIDENT, "be demoted")
        self._vacate(ids)
        self._enter(ids, State.HOME, reason)

    def resize(self, n_slots: int, scores: np.ndarray | None, pinned: np.ndarray | None = None) -> tuple[np.ndarray, bool]:
        """A new number of slots: 0 .. n_slots - 1. Returns (ids int64 [n] that were demoted, whether the arena has its new size
        now).

        Growing adds free slots. Shrinking demotes the pages with the lowest scores (float32 [layer, head, page]; pinned ids, bool
        as in `Policy.pins`, go last: a budget is a hard bound), then those left in slots that go: such a page finds a slot again
        at the next plan. While a copy is under way into a slot that goes, the answer is False: nothing new moves into it, and the
        same call is due again once copies have ended.
        """
        if n_slots < 0:
            raise TierError(f"the arena cannot have {n_slots} slots; give 0 for none, or more")
        demoted = np.empty(0, np.int64)
        if n_slots < self.n_slots:
            resident = self.residency.resident
            n_over = len(resident) - n_slots
            if n_over > 0:
                values = np.zeros(len(resident)) if scores is None else scores.reshape(-1)[resident].astype(np.float64)
                if pinned is not None:
                    values[pins_of(pinned, resident, self.shape.n_pages)] += np.inf
                last = np.zeros(len(resident), bool)
                last[smallest(values, n_over)] = True
                last |= self._flat_slot[resident] >= n_slots
            else:
                last = self._flat_slot[resident] >= n_slots
            demoted = resident[last]
            self.release(demoted, Reason.BUDGET)
        self._limit = n_slots
        size = max(n_slots, int(np.flatnonzero(self._owner >= 0)[-1]) + 1 if (self._owner >= 0).any() else 0)
        if size > self.n_slots:
            more = size - self.n_slots
            self._owner = np.concatenate((self._owner, np.full(more, -1, np.int64)))
            self._stale = np.concatenate((self._stale, np.zeros(more, bool)))
        else:
            self._owner, self._stale = self._owner[:size].copy(), self._stale[:size].copy()
        free = np.flatnonzero(self._owner[:n_slots] < 0).astype(np.int32)[::-1]  # the lowest is handed out first
        self._free = np.empty(size, np.int32)
        self._n_free = len(free)
        self._free[: self._n_free] = free
        return demoted, size == n_slots

    # ---- the mechanics -------------------------------------------------------------------------------------------------------

    def _enter(self, ids: np.ndarray, state: State | np.ndarray, reason: Reason | np.ndarray) -> None:
        self._flat_state[ids] = state
        self._flat_why[ids] = reason
        if not isinstance(state, State) or state != State.MOVING:  # a reservation is counted when it is kept
            self._count(self._flat_why[ids])

    def _count(self, reasons: np.ndarray) -> None:
        self.reasons += np.bincount(reasons, minlength=len(Reason))

    def _vacate(self, ids: np.ndarray) -> None:
        slots = self._flat_slot[ids]
        self._flat_slot[ids] = -1
        self._owner[slots] = -1
        slots = slots[slots < self._limit]  # the others go when the arena shrinks
        self._free[self._n_free : self._n_free + len(slots)] = slots
        self._n_free += len(slots)

    def _require(self, ids: np.ndarray, state: State, what: str) -> None:
        states = self._flat_state[ids]
        if (states != state).any():
            at = int(np.flatnonzero(states != state)[0])
            row, head, page = (int(n) for n in self.shape.places(ids[at]))
            raise TierError(f"page {page} of row {row}, head {head} cannot {what}: it is {State(states[at]).name}, "
                            f"not {state.name}")

    def check(self) -> None:
        """Check the invariants: states and slots agree, and so do the counts. Raises TierError with the first that is broken."""
        state, slot = self._flat_state, self._flat_slot
        holds = (state == State.RESIDENT) | (state == State.MOVING)
        base = (self._exists * self._base).reshape(-1)
        held = np.flatnonzero(self._owner >= 0)
        owners = self._owner[held]
        free = self._free[: self._n_free]
        stale_state = (state == State.MOVING) & (base != State.HOME)
        claims = (
            ((slot >= 0) == holds).all(), "a page has a slot if and only if it is RESIDENT or MOVING",
            (slot < self.n_slots).all(), "every slot is inside the arena",
            (slot[owners] == held).all() and len(owners) == holds.sum(), "a page and the slot it has name each other",
            (state[~holds] == base[~holds]).all(), "a page without a slot is where its cells are",
            (base[state == State.RESIDENT] == State.HOME).all(), "only a settled page is RESIDENT",
            not self._state[~self.shape.exists].any(), "a head that does not exist has no pages",
            self._stale[slot[stale_state]].all(), "a MOVING page whose cells changed is marked",
            len(np.unique(free)) == len(free) and (self._owner[free] < 0).all(), "a free slot is free, and listed once",
            len(free) == (self._owner[: self._limit] < 0).sum(), "every slot without an owner is free",
            len(held) + len(free) <= max(self._limit, self.n_slots), "used and reserved slots are within the budget",
            np.array_equal(np.flatnonzero(self._base == State.FILLING), self._filling), "the pages being filled are known",
            not self._base[self.n_used_end :].any(), "no page is in use past the end",
        )
        for holds_true, claim in zip(claims[::2], claims[1::2]):
            if not holds_true:
                raise TierError(f"the page table is broken: it is not true that {claim}")


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
