"""The planner: tables with exact ids."""

import numpy as np
import pytest
from support.tiers import plan, promote, settled

from edgekv.common.errors import ConfigError
from edgekv.pages.residency import Reason
from edgekv.pages.shape import PageShape
from edgekv.tiering.planner import MoveLimits

SHAPE = PageShape(2, 2, 8)  # ids: row 0: 0-7, 8-15; row 1: 16-23, 24-31
NONE = np.empty(0, np.int64)


def scored(values: dict[int, float]) -> np.ndarray:
    scores = np.zeros(SHAPE.axes, np.float32)
    scores.reshape(-1)[list(values)] = list(values.values())
    return scores


def pages(*which: int) -> np.ndarray:
    return np.isin(np.arange(8), which)


PINNED, WANTED, HOT, ROOM = Reason.PINNED, Reason.WANTED, Reason.HOT, Reason.ROOM

# resident, slots, scores, pinned, wanted, limits -> promote, reasons, demote
TABLE = {
    "nothing to do": ([], 2, {}, None, [], {}, [], [], []),
    "no slots": ([], 0, {1: 0.5}, pages(0), [2], {}, [], [], []),
    "hottest into free slots": ([], 3, {1: 0.1, 9: 0.5, 17: 0.3, 25: 0.2}, None, [], {}, [9, 17, 25], [HOT] * 3, []),
    "zero is not hot": ([], 3, {1: 0.1}, None, [], {}, [1], [HOT], []),
    "past the end is nothing": ([], 2, {7: 0.9, 1: 0.1}, None, [7], {}, [1], [HOT], []),
    "beaten by the margin": ([0, 1], 2, {0: 0.1, 1: 0.4, 9: 0.2}, None, [], {}, [9], [HOT], [0]),
    "not beaten by the margin": ([0, 1], 2, {0: 0.2, 1: 0.4, 9: 0.24}, None, [], {}, [], [], []),
    "the second not beaten by the margin": ([0, 1], 2, {0: 0.1, 1: 0.4, 9: 0.6, 10: 0.45}, None, [], {}, [9], [HOT], [0]),
    "beaten by too little": ([0], 1, {9: 0.0005}, None, [], {"gain": 1e-3}, [], [], []),
    "pairs of the i-th": ([0, 1, 2], 3, {0: 0.3, 1: 0.1, 2: 0.2, 9: 0.5, 10: 0.4, 11: 0.3}, None, [], {}, [9, 10], [HOT] * 2,
                          [1, 2]),
    "free slots, then pairs": ([0], 2, {0: 0.1, 9: 0.5, 10: 0.4}, None, [], {}, [9, 10], [HOT] * 2, [0]),
    "pins into free slots": ([], 4, {1: 0.9}, pages(2), [], {}, [2, 10, 18, 26], [PINNED] * 4, []),
    "pins over the coldest": ([0, 1, 3, 4, 5], 5, {0: 0.5, 1: 0.1, 3: 0.4, 4: 0.2, 5: 0.3}, pages(2), [], {}, [2, 10, 18, 26],
                              [PINNED] * 4, [1, 4, 5, 3]),
    "a pin for each head": ([], 4, {}, scored({9: 1, 18: 1}) > 0, [], {}, [9, 18], [PINNED] * 2, []),
    "pins are not demoted": ([2, 10], 2, {1: 0.9}, pages(2), [], {}, [], [], []),
    "wanted into free slots": ([], 2, {}, None, [17, 5, 1], {}, [17, 5], [WANTED] * 2, []),
    "wanted over a clearly colder": ([0, 1], 2, {0: 0.01, 1: 0.9}, None, [17, 5], {}, [17], [WANTED], [0]),
    "wanted over nothing else": ([0, 1], 2, {0: 0.3, 1: 0.9}, None, [17], {}, [], [], []),
    "wanted is bounded": ([], 4, {}, None, [17, 5, 1], {"max_wanted": 1}, [17], [WANTED], []),
    "wanted and hot moves once": ([], 3, {17: 0.5, 9: 0.4}, None, [17], {}, [17, 9], [WANTED, HOT], []),
    "wanted twice named counts once": ([1], 6, {}, pages(5), [5, 1, 3], {}, [5, 13, 21, 29, 3], [PINNED] * 4 + [WANTED], []),
    "in order of urgency": ([0], 6, {0: 0.1, 9: 0.5, 10: 0.3, 11: 0.15}, pages(5), [17], {}, [5, 13, 21, 29, 17, 9],
                            [PINNED] * 4 + [WANTED, HOT], [0]),
    "no swaps": ([0, 1], 2, {0: 0.1, 9: 0.5}, pages(5), [17], {"swap": False}, [], [], []),
    "no swaps, but free slots": ([0], 3, {0: 0.1, 9: 0.5, 10: 0.4}, None, [17], {"swap": False}, [17, 9], [WANTED, HOT], []),
    "any pages into free slots": ([0], 5, {9: 0.5}, None, [], {"fill": True}, [9, 8, 16, 24], [HOT] + [ROOM] * 3, []),
    "any pages, boundedly": ([], 5, {}, pages(1), [], {"fill": True, "max_moves": 6}, [1, 9, 17, 25, 0], [PINNED] * 4 + [ROOM], []),
    "any pages over nothing": ([0, 1], 2, {}, None, [], {"fill": True}, [], [], []),
    "moves are bounded": ([], 4, {1: 0.1, 9: 0.5, 17: 0.3}, None, [5], {"max_moves": 2}, [5, 9], [WANTED, HOT], []),
}


@pytest.mark.parametrize("name", TABLE)
def test_table(name: str):
    resident, n_slots, scores, pinned, wanted, limits, moved, reasons, demoted = TABLE[name]
    table = settled(SHAPE, n_slots, 6)
    promote(table, resident)
    result = plan(scored(scores), pinned, np.array(wanted, np.int64), table.residency, MoveLimits(**limits))
    assert result.promote.tolist() == moved and result.promote_reasons.tolist() == reasons and result.demote.tolist() == demoted
    assert bool(result) == bool(moved)


def test_moving_pages_are_left_alone():
    table = settled(SHAPE, 2, 6)
    table.reserve(np.array([1, 2]), Reason.HOT)
    result = plan(scored({1: 0.9, 2: 0.0, 3: 0.5}), pages(4), np.array([1]), table.residency, MoveLimits())
    assert not result and result.n_unplaced == 4


def test_pins_that_do_not_fit_are_counted():
    table = settled(SHAPE, 3, 6)
    promote(table, [0])
    result = plan(None, pages(2, 3), NONE, table.residency, MoveLimits())
    assert result.promote.tolist() == [2, 3, 10] and result.demote.tolist() == [0] and result.n_unplaced == 5


def test_many_swaps():
    """The plan has more swaps than the planner sorts at first."""
    shape = PageShape(4, 4, 256)
    table = settled(shape, 1500, 256)
    promote(table, np.arange(1500))
    scores = np.linspace(0.1, 0.2, 4096, dtype=np.float32).reshape(shape.axes)
    scores.reshape(-1)[:1500] = np.linspace(0.01, 0.02, 1500)
    result = plan(scores, None, NONE, table.residency, MoveLimits())
    assert result.promote.tolist() == list(range(4095, 4095 - 1500, -1)) and result.demote.tolist() == list(range(1500))
    bounded = plan(scores, None, NONE, table.residency, MoveLimits(max_moves=300))
    assert bounded.promote.tolist() == result.promote[:300].tolist() and bounded.demote.tolist() == list(range(300))


@pytest.mark.parametrize("wrong", [{"margin": 0.5}, {"max_moves": -1}, {"cold": -0.1}])
def test_limits_are_checked(wrong):
    with pytest.raises(ConfigError, match="limits"):
        MoveLimits(**wrong)
