"""Every prefetcher against exact ids, and the RoPE prior against its formula."""

import math

import numpy as np
import pytest
from support.tiers import observation, promote, settled

from edgekv.arrays.rotary import distance_prior
from edgekv.common.errors import ConfigError
from edgekv.pages.residency import Reason, State
from edgekv.pages.shape import PageShape
from edgekv.tiering.prefetch import PREFETCHERS, Rope, make

SHAPE = PageShape(2, 2, 8)  # ids: row 0: 0-7, 8-15; row 1: 16-23, 24-31
ROPE = Rope(head_dim=64, n_rot=64)


def mass(values: dict[int, float]) -> np.ndarray:
    array = np.zeros(SHAPE.axes, np.float32)
    array.reshape(-1)[list(values)] = list(values.values())
    return array


def wanted(name: str, table, values: dict[int, float], limit: int = 10, n_used: int = 6) -> list[int]:
    return make(name, table.shape, ROPE).wanted(observation(table.shape, n_used, mass(values)), table.residency, limit).get().tolist()


def test_previous():
    table = settled(SHAPE, 4, 6)
    promote(table, [9])
    assert wanted("previous", table, {9: 0.9, 3: 0.2, 17: 0.5, 7: 0.8}) == [17, 3], "9 is resident, 7 is not in use"
    assert wanted("previous", table, {3: 0.2, 17: 0.5}, limit=1) == [17]


def test_rope_prior():
    n_rot, base, factor = 8, 10000.0, 4.0
    prior = distance_prior(5000, 16, n_rot, base, factor)
    for distance in (0, 1, 17, 4095, 4096, 4999):
        turned = [math.cos(distance / factor * base ** (-2 * i / n_rot)) for i in range(n_rot // 2)]
        assert prior[distance] == pytest.approx((sum(turned) + 4) / 8, abs=1e-6)
    assert prior.dtype == np.float32 and prior[0] == 1.0
    whole = distance_prior(4000, 64, 64, 10000.0)
    assert whole[:50].mean() > whole[200:400].mean() > whole[2000:].mean(), "it falls with distance"


def test_rope():
    """All heads of the best page come first; with smooth angles that is the nearest page."""
    table = settled(SHAPE, 8, 6)
    promote(table, [5, 13, 21, 29, 12])
    assert wanted("rope", table, {}, limit=7) == [4, 20, 28, 3, 11, 19, 27]


def test_rope_by_distance():
    shape = PageShape(1, 1, 64)
    table = settled(shape, 0, 64)
    prefetcher = make("rope", shape, Rope(head_dim=8, n_rot=4, base=100.0))
    ids = prefetcher.wanted(observation(shape, 64), table.residency, 64).get()
    np.testing.assert_array_equal(ids, sorted(range(64), key=lambda page: (-prefetcher.prior[63 - page], page)))


def test_rope_needs_a_rope():
    with pytest.raises(ConfigError, match="rotary"):
        make("rope", SHAPE)


@pytest.mark.parametrize("name", PREFETCHERS)
def test_every_prefetcher(name: str):
    """Every id is a HOME page, stands once, and is within the limit; an empty cache gives none."""
    rng = np.random.default_rng(0)
    shape = PageShape(2, 2, 8, exists=np.array([[True, True], [True, False]]))
    table = settled(shape, 8, 6)
    promote(table, [0, 9, 10])
    table.reserve(np.array([3]), Reason.HOT)
    prefetcher = make(name, shape, ROPE)
    for limit in (0, 1, 5, 100):
        ids = prefetcher.wanted(observation(shape, 6, rng.random(shape.axes)), table.residency, limit).get()
        assert ids.dtype == np.int64 and len(ids) <= limit and len(set(ids.tolist())) == len(ids)
        assert (table.states(ids) == State.HOME).all()
    assert bool(len(ids)) == (name != "none")
    empty = settled(shape, 8, 0)
    assert not len(prefetcher.wanted(observation(shape, 0), empty.residency, 5).get())


def test_unobserved_steps_want_nothing():
    table = settled(SHAPE, 0, 6)
    assert not len(make("previous", SHAPE).wanted(observation(SHAPE, 6, observed=False), table.residency, 5).get())


def test_mistake():
    with pytest.raises(ConfigError, match="no prefetch 'ropes'.*none, previous, rope, random"):
        make("ropes", SHAPE)
