"""PageTable: exact transitions, and its invariants under random events."""

import numpy as np
import pytest
from support.tiers import promote, settled, where

from edgekv.common.errors import TierError
from edgekv.pages.residency import Reason, State, pins_of
from edgekv.pages.shape import PageShape
from edgekv.tiering.table import PageTable

SHAPE = PageShape(2, 2, 8)


def states(table: PageTable, row: int, head: int) -> list[str]:
    return [State(s).name for s in table.residency.state[row, head]]


def test_life_of_a_page():
    table = PageTable(SHAPE, 3)
    assert set(states(table, 0, 0)) == {"FREE"} and table.n_free == 3
    assert not len(table.change(np.array([0, 1]), np.zeros(2, bool)))
    assert states(table, 1, 1)[:3] == ["FILLING", "FILLING", "FREE"] and table.n_used_end == 2
    table.change(np.array([1]), np.zeros(1, bool))
    assert states(table, 0, 1)[:3] == ["HOME", "FILLING", "FREE"]

    ids, slots = table.reserve(np.array([8, 0, 24]), Reason.HOT)
    assert ids.tolist() == [8, 0, 24] and slots.tolist() == [0, 1, 2] and table.n_free == 0
    assert where(table, 0, 1, 0) == (State.MOVING, Reason.HOT, 0)
    assert table.commit(np.array([0, 24])).all()
    table.cancel(np.array([8]))
    assert where(table, 0, 0, 0) == (State.RESIDENT, Reason.HOT, 1)
    assert where(table, 0, 1, 0) == (State.HOME, Reason.FAILED, -1) and table.n_free == 1
    table.release(np.array([24]))
    assert where(table, 1, 1, 0) == (State.HOME, Reason.OUTRANKED, -1)
    assert promote(table, [16]).tolist() == [2], "the slot that became free last is taken first"

    # the tokens of page 0 are replaced, then removed
    assert table.change(np.array([0, 1]), np.zeros(2, bool)).tolist() == [0]
    assert table.n_free == 3 and table.n_invalidated == 2 and states(table, 0, 0)[:2] == ["FILLING", "FILLING"]
    assert table.change(np.array([0]), np.array([True])).tolist() == [0]
    assert states(table, 0, 0)[:2] == ["FREE", "HOME"]
    assert table.counts() == {State.FREE: 28, State.FILLING: 0, State.HOME: 4, State.RESIDENT: 0, State.MOVING: 0}
    table.check()
    expected = {Reason.EMPTY: 4, Reason.STORED: 12, Reason.SETTLED: 8, Reason.HOT: 3, Reason.OUTRANKED: 1, Reason.FAILED: 1}
    assert {reason: int(table.reasons[reason]) for reason in Reason if table.reasons[reason]} == expected


def test_not_fitting_is_an_answer():
    table = settled(SHAPE, 2, 4)
    ids, slots = table.reserve(np.array([3, 2, 1, 0]), np.array([Reason.PINNED, Reason.HOT, Reason.HOT, Reason.HOT], np.uint8))
    assert ids.tolist() == [3, 2] and len(slots) == 2
    assert where(table, 0, 0, 3)[1] == Reason.PINNED and where(table, 0, 0, 2)[1] == Reason.HOT
    assert not len(table.reserve(np.array([1]), Reason.HOT)[0])


def test_change_under_a_copy():
    table = settled(SHAPE, 4, 4)
    table.reserve(np.array([2, 10]), Reason.HOT)
    table.reserve(np.array([3]), Reason.HOT)
    assert table.change(np.array([2]), np.zeros(1, bool)).tolist() == [2]
    assert where(table, 0, 0, 2)[0] == State.MOVING and table.n_free == 1, "the copy still writes into its slot"
    table.check()
    table.change(np.array([5]), np.zeros(1, bool))  # page 2 settles again before its copy ends
    assert table.commit(np.array([2, 3])).tolist() == [False, True]
    assert where(table, 0, 0, 2) == (State.HOME, Reason.CHANGED, -1)
    table.change(np.array([2]), np.array([True]))
    table.cancel(np.array([10]))
    assert where(table, 0, 1, 2) == (State.FREE, Reason.CHANGED, -1) and table.n_free == 3
    table.check()


@pytest.mark.parametrize("call", [
    lambda t: t.reserve(np.array([0]), Reason.HOT),  # resident
    lambda t: t.reserve(np.array([4]), Reason.HOT),  # free
    lambda t: t.commit(np.array([1])),  # at home
    lambda t: t.cancel(np.array([0])),
    lambda t: t.release(np.array([2])),  # moving
    lambda t: t.resize(-1, None),
])
def test_impossible_transitions(call):
    table = settled(SHAPE, 4, 4)
    promote(table, [0])
    table.reserve(np.array([2]), Reason.HOT)
    with pytest.raises(TierError, match="page|slots"):
        call(table)
    table.check()


def test_heads_that_do_not_exist():
    table = settled(PageShape(2, 2, 8, exists=np.array([[True, True], [True, False]])), 4, 4)
    assert set(states(table, 1, 1)) == {"FREE"} and table.counts()[State.HOME] == 12
    assert table.reasons[Reason.SETTLED] == 12
    with pytest.raises(TierError, match="row 1, head 1"):
        table.reserve(np.array([24]), Reason.HOT)


def test_shrink():
    """The lowest scores go first, a pin last, and then what stands in slots that go."""
    table = settled(SHAPE, 6, 8)
    assert promote(table, [0, 1, 2, 3, 4, 5]).tolist() == [0, 1, 2, 3, 4, 5]
    scores = np.zeros(SHAPE.axes, np.float32)
    scores[0, 0, :6] = [0.1, 0.5, 0.2, 0.4, 0.3, 0.6]
    pinned = np.arange(8) == 0
    demoted, done = table.resize(3, scores, pinned)
    assert done and table.n_slots == 3
    assert sorted(demoted.tolist()) == [2, 3, 4, 5], "2, 3 and 4 are the lowest that are not pinned; 5 stood in slot 5"
    assert table.n_free == 1 and where(table, 0, 0, 5) == (State.HOME, Reason.BUDGET, -1)
    assert table.resize(5, scores)[1] and table.n_free == 3
    assert promote(table, [7]).tolist() == [2], "the lowest free slot"
    assert sorted(table.resize(0, scores)[0].tolist()) == [0, 1, 7]
    assert table.n_slots == 0 and not len(table.reserve(np.array([1]), Reason.HOT)[0])
    table.check()


def test_shrink_under_copies():
    table = settled(SHAPE, 4, 8)
    table.reserve(np.array([0, 1, 2, 3]), Reason.HOT)
    table.commit(np.array([0]))
    demoted, done = table.resize(2, None)
    assert not done and not len(demoted) and table.n_slots == 4 and table.n_free == 0
    table.cancel(np.array([3]))
    assert table.n_free == 0, "slot 3 goes, and is not handed out"
    table.commit(np.array([2]))
    table.check()
    demoted, done = table.resize(2, None)
    assert done and demoted.tolist() == [2] and table.n_slots == 2 and table.n_free == 0
    table.check()


def test_residency_cannot_be_written():
    residency = settled(SHAPE, 2, 4).residency
    for array in (residency.state, residency.slot, residency.owner):
        with pytest.raises(ValueError):
            array[...] = 0


def test_pins_of():
    ids = np.array([3, 11, 4])
    assert pins_of(np.arange(8) == 3, ids, 8).tolist() == [True, True, False]
    each = np.zeros(SHAPE.axes, bool)
    each[0, 1, 3] = True
    assert pins_of(each, ids, 8).tolist() == [False, True, False]
