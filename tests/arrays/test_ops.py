"""Operations on per-page arrays: NumPy, the specification, against our kernels on the emulated device, and with a GPU, on it."""

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace
from support.array_libraries import address_of, on
from support.tiers import observation, plan, promote, settled

from edgekv.arrays.moving_average import weights
from edgekv.arrays.ops import Ops
from edgekv.arrays.rank import HostRanking, ListedRanking, Top
from edgekv.pages.observation import Observation
from edgekv.pages.residency import Reason, State
from edgekv.pages.shape import PageShape
from edgekv.policies import POLICIES, make
from edgekv.tiering.planner import MoveLimits, decide
from edgekv.tiering.prefetch import PREFETCHERS, Rope
from edgekv.tiering.prefetch import make as make_prefetch


def random_mass(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.gamma(0.3, 0.1, shape).astype(np.float32)


@pytest.mark.parametrize("n_pages", [1, 61, 256, 577, 3330])
def test_ema(ops: Ops, n_pages: int):
    """The results agree to the last bit, and nothing behind the end changes."""
    rng = np.random.default_rng(n_pages)
    scores, mass = random_mass(rng, (2, 3, n_pages)), random_mass(rng, (2, 3, n_pages))
    for end, n_tokens, least in ((n_pages, 1, 0.0), (n_pages // 2, 5, 1e-2), (0, 1, 0.0)):
        there = on(ops, scores)
        expected = scores.copy()
        Ops().ema(expected, mass, end, *weights(0.1, n_tokens), least=least)
        with ops:
            ops.ema(there, on(ops, mass), end, *weights(0.1, n_tokens), least=least)
        np.testing.assert_array_equal(ops.download(there), expected)
        np.testing.assert_array_equal(expected[:, :, end:], scores[:, :, end:])


def test_clear(ops: Ops):
    scores = random_mass(np.random.default_rng(0), (2, 3, 61))
    there = on(ops, scores)
    with ops:
        ops.clear(there, np.array([0, 7, 60]))
        ops.clear(there, np.empty(0, np.int64))
    scores[:, :, [0, 7, 60]] = 0
    np.testing.assert_array_equal(ops.download(there), scores)


@pytest.mark.parametrize("spec", [*POLICIES, "ema+anchor+recent", "ema+lru", "ema+lru+random+recent"])
def test_policies_are_the_same_everywhere(ops: Ops, spec: str):
    """Scores and pins through growth, cuts and forgetting; the scores stand in the array that was given."""
    rng = np.random.default_rng(0)
    shape = PageShape(2, 3, 61)
    given = ops.zeros(shape.axes, np.float32)
    here, there = make(spec, shape, {}), make(spec, shape, {}, ops, given)
    for n_used in (0, 1, 40, 61, 33, 50):
        seen = observation(shape, n_used, random_mass(rng, shape.axes), n_tokens=3)
        here.update(seen)
        with ops:
            there.update(observation_there(ops, seen))
        gone = np.array([2, 5])
        here.forget(gone)
        with ops:
            there.forget(gone)
        assert (here.scores is None) == (there.scores is None)
        if here.scores is not None:
            assert there.scores is given
            np.testing.assert_array_equal(ops.download(there.scores), here.scores)
        if here.pins is not None:
            assert type(there.pins) is np.ndarray
            np.testing.assert_array_equal(there.pins, here.pins)


def observation_there(ops: Ops, seen: Observation) -> Observation:
    mass = on(ops, seen.mass_sum)
    return replace(seen, mass_sum=mass, mass_max=mass)


def ties(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Many scores are equal, and many are zero."""
    return (rng.integers(0, 5, shape) / 4 * (rng.random(shape) < 0.7)).astype(np.float32)


@pytest.mark.parametrize("values", [random_mass, ties])
@pytest.mark.parametrize("n_pages", [1, 61, 577])
def test_top(ops: Ops, n_pages: int, values: Callable):
    rng = np.random.default_rng(n_pages)
    mass = values(rng, (2, 3, n_pages))
    state = rng.integers(0, 5, mass.shape).astype(np.uint8)
    for end in sorted({0, 1, n_pages // 2, n_pages}):
        for n in (0, 1, 7, 64, 5000):
            for among in (None, State.HOME):
                flat = mass[:, :, :end]
                mask = flat > 0 if among is None else (flat > 0) & (state[:, :, :end] == among)
                ids = np.array([(row * 3 + head) * n_pages + page for row, head, page in zip(*np.nonzero(mask))], np.int64)
                order = sorted(ids.tolist(), key=lambda i: (-mass.reshape(-1)[i], i))[:n]
                with ops:
                    found = ops.top(on(ops, mass), end, n, None if among is None else state).get()
                assert found.ids.tolist() == order and found.ids.dtype == np.int64
                np.testing.assert_array_equal(found.values, mass.reshape(-1)[order])


def table_of(rng: np.random.Generator, shape: PageShape, n_used: int):
    table = settled(shape, int(shape.n_layers * shape.n_heads * n_used // 2), n_used)
    home = np.flatnonzero(table.residency.state == State.HOME)
    promote(table, rng.choice(home, len(home) // 3, replace=False))
    table.reserve(np.flatnonzero(table.residency.state == State.HOME)[:3], Reason.HOT)
    return table


@pytest.mark.parametrize(("n_pages", "n_used", "values", "pinning"), [
    (61, 61, ties, "none"), (61, 61, random_mass, "each"), (113, 50, random_mass, "none"), (113, 50, ties, "pages"), (577, 482, random_mass, "pages"),
    (577, 482, ties, "each")])
def test_rank(ops: Ops, n_pages: int, n_used: int, values: Callable, pinning: str):
    """A ranking's answers, and the plan that follows from them, agree to the ids."""
    rng = np.random.default_rng(n_pages)
    shape = PageShape(2, 3, n_pages, exists=np.array([[True, True, True], [True, True, False]]))
    table = table_of(rng, shape, n_used)
    scores = values(rng, shape.axes)
    pins = {"none": None, "pages": rng.random(n_pages) < 0.1, "each": rng.random(shape.axes) < 0.1}[pinning]
    residency = table.residency
    here = HostRanking(scores, pins, residency)
    for limits in (MoveLimits(), MoveLimits(max_moves=30, max_wanted=8), MoveLimits(fill=True), MoveLimits(swap=False, fill=True)):
        with ops:
            there = ops.rank(on(ops, scores), pins, residency, limits.n_ranked).get()
        assert there.n == here.n and there.mean == pytest.approx(here.mean, rel=1e-5)
        for n in (1, 5, 30):
            np.testing.assert_array_equal(there.coldest(n).ids, here.coldest(n).ids)
            np.testing.assert_array_equal(there.coldest(n).values, here.coldest(n).values)
        for wanted in (np.empty(0, np.int64), rng.choice(np.prod(shape.axes), 20, replace=False)):
            expected = plan(scores, pins, wanted, residency, limits)
            with ops:
                there = ops.rank(on(ops, scores), pins, residency, limits.n_ranked).get()
            found = decide(there, pins, wanted, residency, limits)
            assert found.promote.tolist() == expected.promote.tolist() and found.demote.tolist() == expected.demote.tolist()
            assert found.promote_reasons.tolist() == expected.promote_reasons.tolist() and found.n_unplaced == expected.n_unplaced


def test_rank_without_scores(ops: Ops):
    table = settled(PageShape(2, 2, 8), 4, 6)
    promote(table, [1, 10])
    with ops:
        ranking = ops.rank(None, np.arange(8) == 1, table.residency, 10).get()
    assert ranking.n == 1 and ranking.coldest(4).ids.tolist() == [10]


def test_old_answers():
    """Pages leave their slots, come home and are pinned between question and decision: the plan fits the present state."""
    rng = np.random.default_rng(3)
    shape = PageShape(1, 2, 32)
    table = settled(shape, 20, 32)
    promote(table, np.arange(20))
    scores = rng.random(shape.axes).astype(np.float32)
    limits = MoveLimits(max_moves=12)
    flat, before = scores.reshape(-1), table.residency
    resident, home = before.resident, np.flatnonzero(before.state == State.HOME)
    old = ListedRanking(Top(home, flat[home]), Top(resident, flat[resident]), len(resident), float(flat[resident].mean()))
    table.change(np.array([3]), np.zeros(1, bool))  # 3 and 35 are being filled
    table.release(np.array([7]))
    table.reserve(np.array([40, 41]), Reason.HOT)
    pins = np.arange(32) == 11
    result = decide(old, pins, np.empty(0, np.int64), table.residency, limits)
    state = table.residency.state.reshape(-1)
    assert len(result.promote) and len(result.demote)
    assert (state[result.promote] == State.HOME).all() and (state[result.demote] == State.RESIDENT).all()
    assert 11 not in result.demote and len(set(result.promote.tolist())) == len(result.promote)


@pytest.mark.parametrize("name", PREFETCHERS)
def test_prefetchers_are_the_same_everywhere(ops: Ops, name: str):
    rng = np.random.default_rng(0)
    shape = PageShape(2, 2, 61)
    table = table_of(rng, shape, 50)
    here, there = make_prefetch(name, shape, Rope(8, 8)), make_prefetch(name, shape, Rope(8, 8), ops)
    for limit in (0, 5, 64):
        seen = observation(shape, 50, random_mass(rng, shape.axes))
        with ops:
            found = there.wanted(observation_there(ops, seen), table.residency, limit)
        assert found.get().tolist() == here.wanted(seen, table.residency, limit).get().tolist()


def test_views_share_memory(ops: Ops):
    array = on(ops, np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    view = ops.view(address_of(array), np.float32, (2, 3, 4))
    with ops:
        view[...] = np.float32(5)
    assert (ops.download(array) == 5).all() and view.shape == (2, 3, 4)
    assert ops.view(0, np.float32, (0, 4)).shape == (0, 4)


def test_answers_come_later(emulated_cupy):
    """A question does not wait. Its answer is of the time of the question, whatever is queued behind it."""
    ops, device = emulated_cupy
    shape = PageShape(2, 2, 61)
    table = table_of(np.random.default_rng(0), shape, 61)
    scores = random_mass(np.random.default_rng(1), shape.axes)
    expected = plan(scores, None, np.empty(0, np.int64), table.residency, MoveLimits())
    with ops:
        there = on(ops, scores)
        answer = ops.rank(there, None, table.residency, MoveLimits().n_ranked)
        ops.clear(there, np.arange(61))
        assert not device.launched and not answer.done()
        polls = 0
        while not answer.done():
            polls += 1
        assert polls > 10 and device.n_downloads == 0
        assert decide(answer.get(), None, np.empty(0, np.int64), table.residency, MoveLimits()).promote.tolist() == expected.promote.tolist()
