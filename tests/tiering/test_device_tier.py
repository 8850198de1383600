"""The hierarchy on a device: copies on a side stream, answers that come later, capacity and pace. No GPU is needed."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import CopyError, FakeDevice
from support.world import World, act

from edgekv.arrays.ops import Ops
from edgekv.common.enums import KvMode
from edgekv.common.errors import CudaUnavailable, TierError
from edgekv.pages.residency import Reason, State
from edgekv.pages.shape import PageShape
from edgekv.policies import POLICIES
from edgekv.runtime import wiring
from edgekv.tiering.planner import MoveLimits
from edgekv.tiering.prefetch import PREFETCHERS

SHAPE = PageShape(2, 2, 8)


# ---- the transport ------------------------------------------------------------------------------------------------------------


def test_a_copy_that_the_device_refuses():
    device = FakeDevice(SHAPE, refuse=1.0)
    device.resize(4)
    with pytest.raises(TierError, match="refused to copy 2 pages: out of memory"):
        device.transport.start(np.array([1, 2]), np.array([0, 1]))
    assert device.transport.finished() == []


def test_close_waits_for_copies():
    device = FakeDevice(SHAPE)
    device.resize(4)
    device.step()
    device.transport.start(np.array([1, 2]), np.array([0, 1]))
    device.transport.close()
    assert not device.side.work and device.transport.finished() == [] and not device.table


def test_close_of_a_device_that_failed():
    device = FakeDevice(SHAPE)

    def fail() -> None:
        raise CopyError("the GPU has fallen off the bus")

    device.side.synchronize = fail
    device.transport.close()
    assert "fallen off" in device.transport.last_error


# ---- the hierarchy ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy, prefetch_name", [("ema", "none"), ("anchor", "previous"), ("ema+anchor+recent", "previous")])
def test_steps_do_not_wait_for_answers(emulated_cupy, policy: str, prefetch_name: str):
    ops, device = emulated_cupy
    world = World(policy=policy, prefetch=prefetch_name, ops=ops, device=True)
    device.n_at_a_time = 0  # the device is busy with other work
    world.step(40, observed=False)
    world.steps(20)
    stats = world.hierarchy.stats
    asked = int(policy != "anchor")  # a prompt's plan without scores and mass asks nothing of the device
    assert stats.n_plans == 1 - asked and stats.n_late_answers > 0 and device.n_downloads == 0
    device.n_at_a_time = 1 << 30
    world.steps(12, cut=56)
    assert stats.n_plans >= 2 and stats.n_promoted


KERNELS_ONLY = [name for name in POLICIES if POLICIES.get(name).kernels_only]


@pytest.mark.parametrize("prefetch_name", PREFETCHERS)
@pytest.mark.parametrize("policy", [*KERNELS_ONLY, "ema+anchor+recent"])
def test_what_needs_no_compiler(emulated_cupy, policy: str, prefetch_name: str):
    """A driver and CuPy alone run the default policy: its kernels are the build's."""
    ops, device = emulated_cupy
    device.compiles = False
    world = World(policy=policy, prefetch=prefetch_name, ops=ops, device=True)
    world.step(40, observed=False)
    device.n_at_a_time = 1 << 30
    world.steps(20)
    world.steps(12, cut=56)
    assert world.hierarchy.stats.n_plans


@pytest.mark.parametrize("policy", [*(name for name in POLICIES if name not in KERNELS_ONLY), "ema+ema-any"])
def test_a_policy_that_needs_a_compiler_is_refused_without(emulated_cupy, policy: str):
    ops, device = emulated_cupy
    device.compiles = False
    with pytest.raises(CudaUnavailable, match=rf"^the policy {re.escape(policy)} .*pip install"):
        World(policy=policy, ops=ops, device=True)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "none"])
def test_a_device_that_answers_at_once_decides_as_the_host(emulated_cupy, policy: str):
    ops, device = emulated_cupy
    device.eager = True
    worlds = [World(policy=policy, prefetch="previous", seed=5, ops=where) for where in (Ops(), ops)]
    for k in range(40):
        for world in worlds:
            if k == 0:
                world.step(40, observed=False)
            if world.n_tokens >= 62 or k == 25:
                world.cut(30)
            n_before = device.n_downloads
            world.step()
            assert device.n_downloads == n_before, "no step reads the device's memory"
        here, there = worlds
        assert here.resident() == there.resident()
        np.testing.assert_array_equal(here.priority, there.priority)
        np.testing.assert_array_equal(here.pinned, there.pinned)
    assert here.hierarchy.stats.n_promoted == there.hierarchy.stats.n_promoted > 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_events_over_streams(seed: int):
    """Growth, cuts, pins and budgets, over copies that are late, out of order, lost and refused, and steps that read behind them."""
    rng = np.random.default_rng(seed)
    shape = PageShape(2, 2, 16, page_tokens=4)
    world = World(shape, n_slots=int(rng.integers(0, 40)), seed=seed, plan_every=int(rng.integers(1, 5)), device=True,
                  delay=float(rng.choice([0, 0.6])), fail=float(rng.choice([0, 0.1])), refuse=float(rng.choice([0, 0.2])),
                  prompts=float(rng.choice([0, 0.5])), prefetch=str(rng.choice(list(PREFETCHERS))),
                  bytes_per_run=int(rng.choice([100, 500, 5000])),
                  limits=MoveLimits(max_moves=int(rng.integers(1, 30)), swap=bool(rng.random() < 0.7), fill=bool(rng.random() < 0.5)))
    for _ in range(60):
        act(rng, world, "pace")
    world.hierarchy.close()
    world.arena.steps.synchronize()


def test_exact_fills_and_stays():
    """Mode exact on a device: the arena fills while the prompt is read, in equal shares of layers, and nothing moves afterwards."""
    world = World(n_slots=20, device=True, policy="ema", hot=[3, 20, 37], limits=wiring.limits(KvMode.EXACT, True),
                  bytes_per_run=400)
    for _ in range(14):
        world.step(4, observed=False)
    world.steps(20, cut=56)
    resident = world.resident()
    rows, _, pages = world.shape.places(np.array(resident))
    assert len(resident) == 20 and np.bincount(rows).max() - np.bincount(rows).min() <= 2 and pages.max() == 3
    moved = world.hierarchy.stats.moved_bytes
    world.steps(30, cut=56)
    assert world.resident() == resident and world.hierarchy.stats.moved_bytes == moved and world.hierarchy.stats.n_demoted == 0
    why = {reason for state, reason, _ in world.hierarchy.why() if state == State.RESIDENT}
    assert why == {Reason.ROOM}


def test_sparse_on_a_device_fills_and_swaps():
    hot = [12, 28, 44, 60, 76, 92]
    world = World(n_slots=20, device=True, policy="ema", limits=wiring.limits(KvMode.SPARSE, True), prompt=56)
    world.steps(12, cut=56, observed=False)
    assert len(world.resident()) == 20 and not set(hot) & set(world.resident())
    world.hot = hot
    for _ in range(60):
        if world.n_tokens > 58:
            world.cut(56)
        world.step()
    assert set(hot) <= set(world.resident())


# ---- tiering ------------------------------------------------------------------------------------------------------------------


def test_bytes_per_run():
    assert wiring.bytes_per_run(None, 0.1) == wiring.bytes_per_run(25e9, None) == wiring.BYTES_PER_RUN
    assert wiring.bytes_per_run(25e9, 0.16) == 400_000_000
    assert wiring.bytes_per_run(1e6, 0.16) == wiring.BYTES_PER_RUN


def test_limits_are_a_matter_of_mode():
    assert wiring.limits(KvMode.SPARSE, False) == wiring.limits(KvMode.EXACT, False) == MoveLimits()
    assert wiring.limits(KvMode.SPARSE, True).swap and not wiring.limits(KvMode.EXACT, True).swap
    assert wiring.limits(KvMode.EXACT, True).fill
