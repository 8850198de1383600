"""The hierarchy end to end, over an arena that holds bytes: policy, plan, migration and events together, with no model."""


import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import FakeArena, where
from support.world import SHAPE, World, act

from edgekv.common.errors import ConfigError, TierError
from edgekv.pages.observation import Observation
from edgekv.pages.residency import Reason, State
from edgekv.pages.shape import PageShape
from edgekv.tiering.planner import MoveLimits
from edgekv.tiering.prefetch import PREFETCHERS
from edgekv.tiering.step import Hierarchy, HierarchySettings


def test_the_hot_pages_come_to_the_arena():
    hot = [3, 20, 37, 50, 69, 85]  # ids, one a head
    world = World(n_slots=6, hot=hot, policy="ema", prompt=56)
    for _ in range(40):
        if world.n_tokens % 4 == 3:
            world.cut(52)  # the same 14 pages throughout
        world.step()
    assert world.resident() == hot
    row, head, page = (int(n) for n in SHAPE.places(np.int64(20)))
    assert world.scores[row, head, page] > 0.5
    state, reason, slot = where(world.hierarchy.table, row, head, page)
    assert state == State.RESIDENT and reason == Reason.HOT and slot in range(6)
    tiers = world.hierarchy.tiers()
    assert tiers[State.RESIDENT] == 6 and sum(tiers.values()) == 96
    why = {(state, reason): n for state, reason, n in world.hierarchy.why()}
    assert why[State.RESIDENT, Reason.HOT] == 6 and State.FREE not in {state for state, _ in why}

    world.hot = [i + 1 for i in hot]  # attention moves on, and residency follows
    for _ in range(60):
        if world.n_tokens % 4 == 3:
            world.cut(52)
        world.step()
    assert world.resident() == world.hot
    assert world.hierarchy.stats.n_demoted >= 6


def test_pins():
    world = World(n_slots=24, prompt=50)
    assert world.hierarchy.pin(5, 6) == 2
    world.steps(8)
    assert where(world.hierarchy.table, 1, 1, 5)[:2] == (State.RESIDENT, Reason.PINNED) and world.pinned[1, 1, 5]
    assert set(np.flatnonzero(world.pinned[0, 0])) == {0, 5, 6, 12, 13, 14}, "sinks, the user's, and the recent ones"
    assert world.hierarchy.pin(14, 15) == 1, "page 15 is empty"
    world.cut(22)
    world.step()
    assert world.hierarchy.unpin(0, 15) == 1, "what is emptied is not pinned any more"
    assert world.hierarchy.unpin(0, 15) == 0
    with pytest.raises(ConfigError, match="pages 0 to 15"):
        world.hierarchy.pin(3, 16)
    with pytest.raises(ConfigError, match="pages 4 to 3"):
        world.hierarchy.unpin(4, 3)


def test_shrinking_waits_for_copies():
    world = World(n_slots=12, delay=1.0, prompt=56)
    world.steps(4)
    assert world.hierarchy.migrator.n_moving == 12
    world.hierarchy.resize(3)
    assert world.hierarchy.table.n_slots == 12 and len(world.arena.arena) == 12
    world.step()
    world.arena.delay = 0.0
    world.step()
    assert world.hierarchy.table.n_slots == 3 and len(world.arena.arena) == 3
    world.step()
    assert len(world.resident()) <= 3


def test_an_arena_that_cannot_grow():
    world = World(n_slots=6)

    def refuse(n_slots: int) -> None:
        raise TierError("no memory for so many slots")

    world.arena.resize = refuse
    with pytest.raises(TierError, match="no memory"):
        world.hierarchy.resize(1000)
    world.step(30, observed=False)
    world.steps(10)
    assert world.hierarchy.table.n_slots == 6 and len(world.resident()) == 6


def test_without_an_arena_the_policy_still_speaks():
    world = World(n_slots=0, prompt=30)
    world.steps(20)
    assert world.scores.any() and world.pinned.any() and world.hierarchy.stats.n_plans == 0


def test_replaced_tokens_are_forgotten():
    world = World(n_slots=20, policy="ema", hot=[3], prompt=40)
    world.steps(8)
    assert world.scores[0, 0, 3] > 0.3
    world.cut(12)
    world.step(20, observed=False)  # other tokens in the same cells
    assert world.scores[0, 0, 3] == 0 and world.scores[0, 0, 2] > 0
    assert world.hierarchy.stats.n_invalidated > 0


def test_a_copied_stream_begins_with_what_its_source_knows():
    """Scores and a person's pins come along, but for a page whose tokens did not. The source, whose second page got other tokens since, forgets that one."""
    shape = PageShape(1, 1, 8, page_tokens=4, pages_per_stream=4)
    hierarchy = Hierarchy(shape, FakeArena(shape), HierarchySettings(page_bytes=100, policy="lfu", by_stream=True))

    def step(mass: list[float], positions: list[int], changed: list[int], *copies: tuple[int, int]) -> None:
        mass, positions = np.array(mass, np.float32).reshape(shape.axes), np.array(positions, np.int32)
        streams = np.array([[1, 1, 0]] * 2, np.int32)
        hierarchy.step(Observation(mass, mass, 1, True, np.array(changed, np.int64), positions, positions.max(), 8, streams=streams, copies=copies))

    step([1, 1, 1, 0, 0, 0, 0, 1], [3, 7, 11, -1, 3, 7, 11, 15], [0, 1, 2, 4, 5, 6, 7])
    step([0] * 8, [3, 7, 11, -1, 3, 7, 11, 15], [])
    hierarchy.pin(0, 0), hierarchy.pin(2, 2), hierarchy.pin(5, 5)
    assert (hierarchy.policy.scores.ravel() > 0).tolist() == [True, True, True, False, False, False, False, True]
    step([0] * 8, [3, 15, 11, -1, 3, 7, -1, -1], [1, 4, 5, 6, 7], (1, 0))
    assert (hierarchy.policy.scores.ravel() > 0).tolist() == [True, False, True, False, True, True, False, False]
    assert hierarchy.pins.tolist() == [True, False, True, False, True, False, False, False]


def test_a_context_that_was_in_use_before():
    """The first step that is seen does not report all pages as changed."""
    world = World(n_slots=20)
    world.n_tokens = 50
    world.steps(8)
    assert world.hierarchy.tiers()[State.FREE] == 6 and len(world.resident()) == 20


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_events(seed: int):
    """Growth, cuts, pins, budgets, and copies that are late, out of order and lost: slots always equal home."""
    rng = np.random.default_rng(seed)
    shape = PageShape(2, 2, 16, page_tokens=4, exists=np.array([[True, True], [True, rng.random() < 0.5]]))
    world = World(shape, n_slots=int(rng.integers(0, 40)), seed=seed, plan_every=int(rng.integers(1, 5)),
                  delay=float(rng.choice([0, 0.5])), fail=float(rng.choice([0, 0.3])), refuse=float(rng.choice([0, 0.2])),
                  prefetch=str(rng.choice(list(PREFETCHERS))), bytes_per_run=int(rng.choice([100, 500, 5000])),
                  limits=MoveLimits(max_moves=int(rng.integers(1, 30))))
    for _ in range(50):
        act(rng, world)
    world.arena.delay = 0.0
    world.cut(10)
    world.steps(3)
    world.arena.check(world.hierarchy.table)
    assert world.hierarchy.table.n_slots == len(world.arena.arena)
