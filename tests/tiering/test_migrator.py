"""The migrator: exact moves, bounded steps, and copies that are late, out of order or lost."""

import numpy as np
import pytest
from support.tiers import FakeArena, settled, where

from edgekv.pages.residency import Reason, State
from edgekv.pages.shape import PageShape
from edgekv.tiering.migrator import Migrator
from edgekv.tiering.planner import MigrationPlan
from edgekv.tiering.stats import Stats

SHAPE = PageShape(2, 2, 8)


def a_plan(promoted, demoted=()) -> MigrationPlan:
    return MigrationPlan(np.array(promoted, np.int64), np.full(len(promoted), Reason.HOT, np.uint8), np.array(demoted, np.int64))


class Bench:
    """A migrator over eight settled pages a head."""

    def __init__(self, n_slots: int, pages_per_run: int = 4, **faults):
        self.table = settled(SHAPE, n_slots, 8)
        self.arena = FakeArena(SHAPE, **faults)
        self.arena.resize(n_slots)
        self.stats = Stats()
        self.migrator = Migrator(self.table, self.arena, pages_per_run, 100, self.stats)

    def resident(self) -> list[int]:
        return self.table.residency.resident.tolist()

    def step(self, pinned=None, n: int = 1) -> None:
        for _ in range(n):
            self.migrator.collect()
            self.migrator.advance(pinned)
            self.table.check()


def test_two_phases():
    bench = Bench(4)
    bench.migrator.submit(a_plan([3, 9]))
    bench.step()
    assert bench.resident() == [] and bench.migrator.n_moving == 2
    assert (bench.table.states(np.array([3, 9])) == State.MOVING).all()
    bench.step()
    assert bench.resident() == [3, 9] and bench.migrator.n_moving == 0
    bench.arena.check(bench.table)
    assert (bench.stats.n_promoted, bench.stats.moved_bytes, bench.stats.n_failed_copies) == (2, 200, 0)


def test_steps_are_bounded_and_the_rest_waits():
    bench = Bench(8, pages_per_run=2)
    bench.migrator.submit(a_plan([1, 2, 3, 4, 5]))
    copied = []
    for _ in range(4):
        bench.step()
        copied.append(bench.arena.n_copied)
    assert copied == [2, 4, 5, 5] and bench.resident() == [1, 2, 3, 4, 5]
    bench.migrator.submit(a_plan([9, 10, 11]))
    bench.step()
    bench.migrator.submit(a_plan([12]))
    bench.step(n=2)
    assert bench.resident() == [1, 2, 3, 4, 5, 9, 10, 12], "a new plan takes the place of what was left of the old one"


def test_a_slot_is_taken_when_it_is_needed():
    bench = Bench(3, pages_per_run=1)
    bench.migrator.submit(a_plan([1, 2, 3]))
    bench.step(n=4)
    bench.migrator.submit(a_plan([9, 10], [2, 1]))
    bench.step()
    assert bench.resident() == [1, 3], "page 1 waits until page 10 is copied"
    bench.step()
    assert bench.resident() == [3, 9] and bench.stats.n_demoted == 2
    assert where(bench.table, 0, 0, 2) == (State.HOME, Reason.OUTRANKED, -1)
    bench.step()
    assert bench.resident() == [3, 9, 10]


def test_what_changed_since_the_plan_is_left_out():
    bench = Bench(3)
    bench.migrator.submit(a_plan([1, 2, 3]))
    bench.step(n=2)
    bench.migrator.submit(a_plan([12, 13, 14], [1, 2, 3]))
    for pages in (np.array([2, 5]), np.array([7])):  # 2, 10, 18, 26 and 5, 13, ... are replaced
        bench.arena.change(pages)
        bench.table.change(pages, np.zeros(len(pages), bool))
    bench.step(pinned=np.arange(8) == 3)
    bench.step()
    assert bench.resident() == [3, 12, 13], "14 finds no slot: 2 has none any more, 1 gave its own, 3 is pinned"
    bench.arena.check(bench.table)


def test_failed_copies_stay_at_home():
    bench = Bench(4, fail=1.0)
    bench.migrator.submit(a_plan([1, 2]))
    bench.step(n=3)
    assert bench.resident() == [] and bench.arena.n_copied == 2, "they are not tried again until planned again"
    assert bench.stats.n_failed_copies == 2 and where(bench.table, 0, 0, 1) == (State.HOME, Reason.FAILED, -1)
    bench.arena.fail = 0.0
    bench.migrator.submit(a_plan([1, 2]))
    bench.step(n=2)
    assert bench.resident() == [1, 2]


def test_a_copy_that_cannot_begin():
    bench = Bench(4, refuse=1.0)
    bench.migrator.submit(a_plan([1, 2]))
    bench.step()
    assert bench.table.n_free == 4 and bench.stats.n_failed_copies == 2 and bench.stats.moved_bytes == 0
    assert "out of order" in bench.migrator.last_error


def test_an_error_of_another_kind():
    """The migrator passes the error on and loses no slot."""
    bench = Bench(4)

    def fail(ids, slots):
        raise ValueError("a mistake in the transport")

    bench.arena.start = fail
    bench.migrator.submit(a_plan([1, 2]))
    with pytest.raises(ValueError):
        bench.step()
    assert bench.table.n_free == 4 and bench.migrator.n_moving == 0
    bench.table.check()


def test_a_change_under_the_copy():
    bench = Bench(4, delay=1.0)
    bench.migrator.submit(a_plan([1, 2]))
    bench.step()
    bench.arena.change(np.array([1]))
    bench.table.change(np.array([1]), np.zeros(1, bool))
    bench.arena.delay = 0.0
    bench.step()
    assert bench.resident() == [2] and where(bench.table, 0, 0, 1) == (State.FILLING, Reason.CHANGED, -1)
    bench.arena.check(bench.table)


def test_a_change_that_the_transport_did_not_see():
    """The table knows of a change, and the migrator takes back a page that was published."""
    bench = Bench(4, delay=1.0)
    bench.migrator.submit(a_plan([1, 2]))
    bench.step()
    bench.table.change(np.array([1]), np.zeros(1, bool))
    bench.arena.delay = 0.0
    bench.step()
    assert bench.resident() == [2] and list(bench.arena.table) == [2] and bench.stats.n_failed_copies == 1
