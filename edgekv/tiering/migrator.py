"""Carries a plan out: submit, advance, collect."""

import time

import numpy as np

from edgekv.common.errors import TierError
from edgekv.pages.residency import Reason, State, pins_of
from edgekv.tiering.planner import MigrationPlan
from edgekv.tiering.stats import Stats
from edgekv.tiering.table import PageTable
from edgekv.tiering.transport import Transport

_NO_IDS = np.empty(0, np.int64)


class Migrator:
    """Moves at most `pages_per_run` pages a run. The rest of a plan waits for the next run, until a new plan takes its
    place.

    A page moves in two phases: its slot is reserved and the copy begun, and when that is complete the page becomes resident. The
    slot of a page to demote is taken only in the run that needs it. A copy that fails leaves its page at home until another plan
    names it.
    """

    def __init__(self, table: PageTable, transport: Transport, pages_per_run: int, page_bytes: int, stats: Stats):
        self.table = table
        self.transport = transport
        self.pages_per_run = max(1, pages_per_run)
        self.page_bytes = page_bytes
        self.stats = stats
        self.last_error = ""
        """The reason of the last copy that could not begin."""
        self._promote, self._reasons, self._demote = _NO_IDS, np.empty(0, np.uint8), _NO_IDS
        self._moving: dict[int, np.ndarray] = {}

    @property
    def n_waiting(self) -> int:
        """Promotions of the plan that have not begun."""
        return len(self._promote)

    @property
    def n_moving(self) -> int:
        """Copies under way."""
        return sum(len(ids) for ids in self._moving.values())

    def submit(self, plan: MigrationPlan) -> None:
        """Carry out this plan from now on; the rest of the one before is dropped."""
        self._promote, self._reasons, self._demote = plan.promote, plan.promote_reasons, plan.demote

    def drop(self) -> None:
        """Forget the moves that have not begun."""
        self._promote, self._reasons, self._demote = _NO_IDS, np.empty(0, np.uint8), _NO_IDS

    def advance(self, pinned: np.ndarray | None = None) -> None:
        """Begin the next moves. Pages that changed since the plan was made, and demotions of pages pinned since, are left out."""
        self.stats.moved_bytes_last = 0
        if not len(self._promote):
            return
        ids, self._promote = self._promote[: self.pages_per_run], self._promote[self.pages_per_run :]
        reasons, self._reasons = self._reasons[: self.pages_per_run], self._reasons[self.pages_per_run :]
        home = self.table.states(ids) == State.HOME
        ids, reasons = ids[home], reasons[home]
        self._make_room(len(ids) - self.table.n_free, pinned)
        ids, slots = self.table.reserve(ids, reasons)
        if not len(ids):
            return
        began = time.perf_counter()
        try:
            ticket = self.transport.start(ids, slots)
        except Exception as error:
            self.table.cancel(ids)
            self.stats.n_failed_copies += len(ids)
            if not isinstance(error, TierError):
                raise
            self.last_error = str(error)
            return
        self._moving[ticket] = ids
        self.stats.stall_seconds += time.perf_counter() - began
        self.stats.moved_bytes_last = len(ids) * self.page_bytes
        self.stats.moved_bytes += self.stats.moved_bytes_last

    def _make_room(self, n_slots: int, pinned: np.ndarray | None) -> None:
        if n_slots <= 0:
            return
        ids = self._demote[self.table.states(self._demote) == State.RESIDENT]
        if pinned is not None:
            ids = ids[~pins_of(pinned, ids, self.table.shape.n_pages)]
        self._demote = ids[n_slots:]
        self.demote(ids[:n_slots], Reason.OUTRANKED)

    def demote(self, ids: np.ndarray, reason: Reason) -> None:
        """Give up the slots of RESIDENT pages."""
        if len(ids):
            self.transport.pages.release(ids)
            self.table.release(ids, reason)
            self.stats.n_demoted += len(ids)

    def collect(self) -> None:
        """Make the pages resident whose copies have ended."""
        began = time.perf_counter()
        finished = self.transport.finished()
        self.stats.stall_seconds += time.perf_counter() - began
        for ticket, ok in finished:
            ids = self._moving.pop(ticket)
            if ok.all():
                done = ids
            else:
                done = ids[ok]
                self.table.cancel(ids[~ok], Reason.FAILED)
            resident = self.table.commit(done)
            if not resident.all():  # these changed after they were published: the bytes at home are right
                self.transport.pages.release(done[~resident])
            n_resident = int(np.count_nonzero(resident))
            self.stats.n_promoted += n_resident
            self.stats.n_failed_copies += len(ids) - n_resident
