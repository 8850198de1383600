"""A context without a model: cells that fill and change, and an arena that holds bytes and delays, reorders and fails its
copies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgekv.arrays.rank import HostRanking
from edgekv.common.errors import TierError
from edgekv.pages.observation import Observation
from edgekv.pages.residency import Reason, Residency, State
from edgekv.pages.shape import PageShape
from edgekv.tiering.device_arena import DeviceArena
from edgekv.tiering.planner import MigrationPlan, MoveLimits, decide
from edgekv.tiering.table import PageTable


def settled(shape: PageShape, n_slots: int, pages: range | int) -> PageTable:
    """A page table that has these pages at home."""
    table = PageTable(shape, n_slots)
    pages = np.arange(pages) if isinstance(pages, int) else np.array(pages)
    table.change(pages, np.zeros(len(pages), bool))
    table.change(pages[:0], np.zeros(0, bool))
    table.check()
    return table


def promote(table: PageTable, ids, reason: Reason = Reason.HOT) -> np.ndarray:
    """Move pages into slots at once. Returns the slots."""
    ids, slots = table.reserve(np.array(ids, np.int64), reason)
    table.commit(ids)
    return slots


def where(table: PageTable, row: int, head: int, page: int) -> tuple[State, Reason, int]:
    """State, reason and slot (-1: none) of one page."""
    at, residency = (row, head, page), table.residency
    return State(residency.state[at]), Reason(table._why[at]), int(residency.slot[at])


def plan(scores: np.ndarray | None, pinned: np.ndarray | None, wanted: np.ndarray, residency: Residency, limits: MoveLimits) -> MigrationPlan:
    """`decide` by scores in host memory: float32 [row, head, page], None: all zero."""
    return decide(HostRanking(scores, pinned, residency), pinned, wanted, residency, limits)


def observation(shape: PageShape, n_used: int, mass: np.ndarray | None = None, changed=(), observed: bool = True,
                n_tokens: int = 1) -> Observation:
    """Pages 0 .. n_used - 1 of the only stream hold consecutive positions."""
    pages = np.arange(shape.n_pages)
    positions = np.where(pages < n_used, (pages + 1) * shape.page_tokens - 1, -1).astype(np.int32)
    mass = np.zeros(shape.axes, np.float32) if mass is None else mass.astype(np.float32)
    return Observation(mass, mass, n_tokens, observed, np.array(changed, np.int64), positions,
                       int(positions.max(initial=-1)), n_used)


class FakeArena:
    """A transport over versions in place of bytes: a page's contents are a number that changes with its cells. Like native code it takes a
    page out of its table at once when its cells change, and does not publish a page that changed under its copy."""

    def __init__(self, shape: PageShape, seed: int = 0, delay: float = 0.0, fail: float = 0.0, refuse: float = 0.0):
        self.shape = shape
        self.home = np.arange(np.prod(shape.axes)).astype(np.int64) * 1000
        self.arena = np.empty(0, np.int64)
        self.table: dict[int, int] = {}
        self.delay, self.fail, self.refuse = delay, fail, refuse
        self.n_copied = 0
        self.most_published = 0
        self._random = np.random.default_rng(seed)
        self._copies: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._n_tickets = 0
        self.pages = self

    def change(self, pages: np.ndarray) -> None:
        """Cells of these pages change, for all rows and heads."""
        ids = (np.arange(self.shape.n_layers * self.shape.n_heads)[:, None] * self.shape.n_pages + np.asarray(pages)).reshape(-1)
        self.home[ids] += 1
        for i in ids:
            self.table.pop(int(i), None)

    def start(self, ids: np.ndarray, slots: np.ndarray) -> int:
        if self._random.random() < self.refuse:
            raise TierError("the copy engine is out of order")
        assert not set(slots.tolist()) & set(self.table.values()), "a slot that is read was given away"
        assert (slots < len(self.arena)).all(), "a slot outside the arena"
        self.arena[slots] = self.home[ids]
        self.n_copied += len(ids)
        self._n_tickets += 1
        self._copies[self._n_tickets] = ids, slots, self.home[ids].copy()
        return self._n_tickets

    def finished(self) -> list[tuple[int, np.ndarray]]:
        tickets = [ticket for ticket in self._copies if self._random.random() >= self.delay]
        self._random.shuffle(tickets)
        done = []
        for ticket in tickets:
            ids, slots, copied = self._copies.pop(ticket)
            ok = (self.home[ids] == copied) & (self._random.random(len(ids)) >= self.fail)
            self.table.update(zip(ids[ok].tolist(), slots[ok].tolist()))
            self.most_published = max(self.most_published, len(self.table))
            done.append((ticket, ok))
        return done

    def release(self, ids: np.ndarray) -> None:
        for i in ids:
            self.table.pop(int(i), None)

    def resize(self, n_slots: int) -> None:
        assert all(slot < n_slots for slot in self.table.values()), "a page in a slot that goes"
        assert all((slots < n_slots).all() for _, slots, _ in self._copies.values()), "a copy into a slot that goes"
        self.arena = np.concatenate((self.arena[:n_slots], np.zeros(max(0, n_slots - len(self.arena)), np.int64)))

    def close(self) -> None:
        self._copies.clear()

    def check(self, table: PageTable) -> None:
        """The page table is the arena's, and each slot has its page's bytes."""
        table.check()
        residency = table.residency
        slots = residency.slot.reshape(-1)
        assert self.table == {int(i): int(slots[i]) for i in residency.resident}, "the page table is not the arena's"
        for i, slot in self.table.items():
            assert self.holds(slot, i), f"slot {slot} does not hold page {i}"
        assert (residency.state[~self.shape.exists] == State.FREE).all(), "a head that does not exist has a page"

    def holds(self, slot: int, i: int) -> bool:
        return self.arena[slot] == self.home[i]


class CopyError(Exception):
    """An error of the fake device."""


class FakeStream:
    """Work that runs when the device gets to it."""

    def __init__(self, device: FakeDevice):
        self.device = device
        self.work: list[Callable[[], bool]] = []  # each says whether it is over

    def push(self, work: Callable[[], object]) -> None:
        self.work.append(lambda: (work(), True)[1])

    def run(self, n: int) -> None:
        while self.work and n and self.work[0]():
            self.work.pop(0)
            n -= 1

    def record(self) -> FakeEvent:
        event = FakeEvent(self)
        self.push(lambda: setattr(event, "over", True))
        return event

    def wait_for(self, event: FakeEvent) -> None:
        self.work.append(lambda: event.over)

    def synchronize(self) -> None:
        while self.work:
            self.device.advance(1 << 30)


class FakeEvent:
    def __init__(self, stream: FakeStream):
        self.stream, self.over, self.lost = stream, False, False

    def done(self) -> bool:
        device = self.stream.device
        device.advance(int(device.random.integers(0, 4)))
        if self.over and not self.lost and device.random.random() < device.fail:
            self.lost = True  # for good, as a device error is
        if self.over and self.lost:
            raise CopyError("an illegal address")
        return self.over and device.random.random() >= device.delay  # the news of an end may come late, and after that of later copies

    def wait(self) -> None:
        self.stream.synchronize()


class FakeDevice(FakeArena):
    """A FakeArena behind a step's stream and a side stream, for `DeviceArena`. `step` queues a step that finds its pages' bytes in their
    slots when the device gets to it, by the page table of the time when it was queued."""

    def __init__(self, shape: PageShape, seed: int = 0, delay: float = 0.0, fail: float = 0.0, refuse: float = 0.0, prompts: float = 0.0):
        super().__init__(shape, seed, delay, fail, refuse)
        self.prompts = prompts
        """The share of steps that are parts of prompts. Some are the last part although another was expected."""
        self.asked: dict[int, int] = {}
        self.filled_slots: dict[int, int] = {}
        self.fill_all: bool | None = None
        self.queued: list[dict[int, int]] = []
        self.random = np.random.default_rng(seed)
        self.steps, self.side = FakeStream(self), FakeStream(self)
        self.ubatch_stream, self.errors = self.steps, (CopyError,)
        self.begun: dict[int, tuple[int, int]] = {}
        self.n_read = 0
        self.transport = DeviceArena(self, self)  # the fake is the pages and the streams

    def side_stream(self) -> FakeStream:
        return self.side

    def advance(self, n: int) -> None:
        """Either stream goes on, by n operations at most."""
        for stream in (self.steps, self.side) if self.random.random() < 0.5 else (self.side, self.steps):
            stream.run(n)

    def step(self) -> None:
        self._end_fills()
        slots = np.array(list(self.table.values()), np.int64)
        pages = self.home[list(self.table)].copy()

        def read() -> None:
            np.testing.assert_array_equal(self.arena[slots], pages, "a slot was written while a step could still read it")
            self.n_read += len(slots)

        self.steps.push(read)

    def begin(self, ids: np.ndarray, slots: np.ndarray) -> None:
        assert not set(slots.tolist()) & set(self.table.values()), "a slot that is in the page table was given away"
        self.begun.update((int(slot), (int(i), int(self.home[i]))) for i, slot in zip(ids, slots))

    def fill(self, ids: np.ndarray, slots: np.ndarray) -> None:
        self.begin(ids, slots)
        self.filled_slots = {}
        self.asked.update(zip(slots.tolist(), ids.tolist()))

    def filled(self, ids: np.ndarray, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return (np.array([slot not in self.asked for slot in slots.tolist()], bool),
                np.array([self.filled_slots.get(slot) == i for i, slot in zip(ids.tolist(), slots.tolist())], bool))

    def _end_fills(self) -> None:
        """Fill the slots that a prompt's step was asked to fill, but for pages that it did not see."""
        if not self.prompts:
            return
        self.transport.in_prompt = self.random.random() < self.prompts
        sees = self.random.choice([0.0, 0.8, 1.0]) if self.fill_all is None else float(self.fill_all)
        self.filled_slots = {slot: i for slot, i in self.asked.items() if self.random.random() < sees}
        self.asked.clear()
        slots, ids = list(self.filled_slots), list(self.filled_slots.values())
        pages = self.home[ids].copy()  # changes of home stand behind this step
        self.queued.append(self.filled_slots)

        def write() -> None:
            self.arena[slots] = pages
            self.queued.pop(0)

        self.steps.push(write)

    def holds(self, slot: int, i: int) -> bool:
        """Fills of queued steps count: they come before whatever reads behind them."""
        return super().holds(slot, i) or any(fills.get(slot) == i for fills in self.queued)

    def gather(self, ids: np.ndarray, slots: np.ndarray, stream: FakeStream) -> None:
        if self.random.random() < self.refuse:
            raise CopyError("out of memory")
        assert stream is self.side and all(self.begun[int(slot)][0] == i for i, slot in zip(ids, slots)), "begin comes first"
        self.n_copied += len(ids)

        def copy() -> None:
            self.arena[slots] = self.home[ids]

        stream.push(copy)

    def publish(self, ids: np.ndarray, slots: np.ndarray) -> np.ndarray:
        ok = np.array([self.begun.pop(int(slot)) == (int(i), int(self.home[i])) for i, slot in zip(ids, slots)], bool)
        self.table.update(zip(ids[ok].tolist(), slots[ok].tolist()))
        self.most_published = max(self.most_published, len(self.table))
        return ok

    def resize(self, n_slots: int) -> None:
        assert all(slot < n_slots for slot in self.table.values()), "a page in a slot that goes"
        self.steps.synchronize()  # native waits for what runs
        self.arena = np.concatenate((self.arena[:n_slots], np.zeros(max(0, n_slots - len(self.arena)), np.int64)))
