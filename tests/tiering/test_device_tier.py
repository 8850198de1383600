"""The hierarchy on a device: copies on a side stream, answers that come later, capacity and pace. No GPU is needed."""

import re
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.fake_gpus import RATES
from support.tiers import CopyError, FakeDevice, plan, settled
from support.world import World, act

from edgekv._native import core, device_calls, native_arrays, paging
from edgekv._native.native_pages import NativePages, moves_of
from edgekv.arrays.move import LAYER
from edgekv.arrays.ops import Ops
from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import CudaUnavailable, TierError
from edgekv.config import KvOptions
from edgekv.pages.residency import Reason, State
from edgekv.pages.shape import PageShape
from edgekv.policies import POLICIES
from edgekv.runtime import context, wiring
from edgekv.tiering.migrator import Migrator
from edgekv.tiering.planner import MoveLimits
from edgekv.tiering.prefetch import PREFETCHERS
from edgekv.tiering.stats import Stats

SHAPE = PageShape(2, 2, 8)


# ---- the transport ------------------------------------------------------------------------------------------------------------


def test_a_copy_waits_for_the_steps_before_it():
    """The step in flight may still read a released slot: the gather runs after it."""
    device = FakeDevice(SHAPE)
    device.resize(1)
    arena = device.transport
    arena.start(np.array([3]), np.array([0]))
    arena._side.synchronize()
    while not (done := arena.finished()):
        pass
    assert done[0][1].tolist() == [True] and device.table == {3: 0}
    device.step()
    arena.pages.release(np.array([3]))
    arena.start(np.array([9]), np.array([0]))
    device.side.run(99)
    assert device.arena[0] == device.home[3], "the step is not over"
    device.steps.run(99)
    device.side.run(99)
    assert device.arena[0] == device.home[9] and device.n_read == 1


def test_pages_are_published_when_they_have_arrived():
    device = FakeDevice(SHAPE, delay=1.0)
    device.resize(4)
    ticket = device.transport.start(np.array([1, 2]), np.array([0, 1]))
    for _ in range(5):
        assert device.transport.finished() == [] and not device.table
    device.change(np.array([2]))
    device.delay = 0.0
    device.side.synchronize()
    [(ended, ok)] = device.transport.finished()
    assert ended == ticket and ok.tolist() == [True, False] and device.table == {1: 0}
    assert device.transport.finished() == []


def test_a_copy_that_the_device_refuses():
    device = FakeDevice(SHAPE, refuse=1.0)
    device.resize(4)
    with pytest.raises(TierError, match="refused to copy 2 pages: out of memory"):
        device.transport.start(np.array([1, 2]), np.array([0, 1]))
    assert device.transport.finished() == []


def test_a_copy_that_the_device_loses():
    table = settled(SHAPE, 4, 8)
    device = FakeDevice(SHAPE, fail=1.0)
    device.resize(4)
    migrator = Migrator(table, device.transport, 4, 100, stats := Stats())
    migrator.submit(plan(np.ones(SHAPE.axes, np.float32), None, np.empty(0, np.int64), table.residency, MoveLimits(max_moves=2)))
    for _ in range(20):
        migrator.advance()
        migrator.collect()
    table.check()
    assert not len(table.residency.resident) and table.n_free == 4 and stats.n_failed_copies == 2 and not device.table
    assert "illegal address" in device.transport.last_error


def test_a_prompt_leaves_pages_in_their_slots():
    """The next part of a prompt brings pages along, so that no copy runs while a prompt is read. Copies for the pages that it left out
    follow."""
    device = FakeDevice(SHAPE, prompts=1.0)
    device.resize(4)
    device.transport.in_prompt = True
    ticket = device.transport.start(np.array([1, 2, 5]), np.array([0, 1, 3]))
    assert device.transport.finished() == [] and not device.n_copied
    device.fill_all = True
    device.step()
    [(ended, ok)] = device.transport.finished()
    device.steps.synchronize()
    assert ended == ticket and ok.all() and not device.n_copied and device.table == {1: 0, 2: 1, 5: 3}
    assert device.arena[[0, 1, 3]].tolist() == device.home[[1, 2, 5]].tolist()

    device.release(np.array([1, 2]))
    device.transport.start(np.array([7, 8]), np.array([0, 1]))
    device.fill_all = False
    device.step()
    while not (ended := device.transport.finished()):
        device.side.synchronize()
    assert ended[0][1].all() and device.n_copied == 2 and device.table == {5: 3, 7: 0, 8: 1}


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
        np.testing.assert_array_equal(here.scores, there.scores)
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


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """The native functions that Tiering calls, over two rows of home and an arena in host memory. `said` collects the calls that change
    something."""
    rng = np.random.default_rng(0)
    n_heads, n_pages, n_cells, row_bytes = 2, 8, 120, 64
    home = rng.integers(0, 256, (2, 2, n_cells, n_heads, row_bytes), dtype=np.uint8)  # row, K or V
    rows = np.zeros(2, LAYER)
    for row, arrays in zip(rows, home):
        for kind, array in zip("kv", arrays):
            row[kind], row[f"{kind}_stride_cell"], row[f"{kind}_stride_head"] = array.ctypes.data, array.strides[0], array.strides[1]
            row[f"{kind}_row_bytes"] = row_bytes
    rows["v_offset"], rows["n_heads"] = 16 * row_bytes, (2, 1)
    arena, n_slots_max = np.zeros((10, 32 * row_bytes), np.uint8), 10
    shape = (2, n_heads, n_pages)
    newest = np.full(n_pages, -1, np.int32)
    said: list[tuple] = []
    place = device_calls.Plane(DeviceKind.EMULATED, 0, 0, arena.ctypes.data, 32 * row_bytes, 0, n_slots_max, n_cells, rows.ctypes.data,
                         1 << 20, 1 << 10, 0)
    for owner, functions in (
        (device_calls, {"plane": lambda handle: place}),
        (native_arrays, {"run_so_far": lambda handle: types.SimpleNamespace(page_tokens=16, pages_per_stream=n_pages),
                         "cells": lambda handle, stream: types.SimpleNamespace(n_cells=n_cells, n_used=0)}),
        (core, {"layers": lambda handle: [types.SimpleNamespace(index=row, n_head_kv=n, head_dim=32)
                                          for row, n in ((0, 2), (1, 1), (-1, 9))],
                "limits": lambda handle: types.SimpleNamespace(n_ctx_seq=n_cells, n_seq_max=1, n_batch=n_cells, n_ubatch=n_cells, closes_gaps=False,
                                                               n_kept=0, gives_back=False),
                "rope": lambda handle: None}),
        (paging, {"page_arrays": lambda handle: paging.PageArrays(shape, np.zeros(shape, np.int32), newest, None, 0,
                                                                  32 * row_bytes),
                  "set_hot_rows": lambda handle, n_bytes: said.append(("rows", n_bytes))}),
        (NativePages, {
            "resize": lambda pages, n: said.append(("arena", n)),
            "begin": lambda pages, ids, slots: said.append(("begin", moves_of(pages._shape, ids, slots))),
            "publish": lambda pages, ids, slots: (said.append(("publish", moves_of(pages._shape, ids, slots))), np.ones(len(ids), bool))[1],
            "release": lambda pages, ids: said.append(("release", moves_of(pages._shape, ids)))}),
    ):
        for name, function in functions.items():
            monkeypatch.setattr(owner, name, function)
    return types.SimpleNamespace(home=home, arena=arena, newest=newest, said=said, rows=rows)


def prompt_step(changed: list[int]) -> types.SimpleNamespace:
    mass = np.zeros((2, 2, 8), np.float32)
    return types.SimpleNamespace(mass_sum=mass, mass_max=mass, n_tokens=16, n_tokens_hooked=0, n_tokens_observed=0, n_tokens_prompt=16,
                                 streams=np.empty((0, 3), np.int32), changed=np.array(changed, np.int64), newest=100)


def test_tiering_on_an_emulated_plane(plane):
    """In mode exact the capacity is the plane's, each copy is announced before it begins, and bytes lie where the kernels look for them."""
    options = KvOptions(mode=KvMode.EXACT)
    tiers = wiring.Tiering(object(), options, stats := Stats(), context.operations(object()))
    assert plane.said == [("arena", 0), ("rows", 0), ("arena", 10)]
    plane.newest[:] = np.minimum((np.arange(8) + 1) * 16, 120) - 1
    tiers.hierarchy.step(tiers.observation(prompt_step(list(range(8)))))
    for _ in range(6):
        tiers.hierarchy.step(tiers.observation(prompt_step([])))
    assert tiers.hierarchy.tiers()[State.RESIDENT] == 10 and stats.n_promoted == 10
    begun = np.concatenate([moves for what, moves in plane.said if what == "begin"])
    published = np.concatenate([moves for what, moves in plane.said if what == "publish"])
    assert sorted(begun.tolist()) == sorted(published.tolist()) and len(begun) == 10
    assert (begun["head"] < np.where(begun["layer"] == 0, 2, 1)).all()
    for row, head, page, slot in published.tolist():
        cells = plane.home[row, :, page * 16 : page * 16 + 16, head]
        np.testing.assert_array_equal(plane.arena[slot].reshape(2, 16, 64)[:, : cells.shape[1]], cells)
    assert stats.stall_seconds > 0 and stats.moved_bytes == 10 * 2048
    tiers.close()
    tiers = wiring.Tiering(object(), options.with_(mode=KvMode.SPARSE, kv_budget=4 * 2048), Stats(), context.operations(object()))
    assert tiers.hierarchy.table.n_slots == 1 and plane.said[-1][0] != "rows" and ("rows", 3 * 2048) in plane.said, "three quarters are for rows"
    tiers.close()


def test_pace_follows_the_link(plane, monkeypatch: pytest.MonkeyPatch):
    clock = iter([1.0, 1.1, 1.3, 60.0])
    tiers = wiring.Tiering(object(), KvOptions(mode=KvMode.EXACT), Stats(), Ops(), replace(RATES, link_gather=1e10))
    monkeypatch.setattr(wiring.time, "perf_counter", lambda: next(clock))
    paces = []
    for _ in range(4):
        tiers._measure()
        paces.append(tiers.hierarchy.migrator.pages_per_run * 2048)
    assert paces[0] == wiring.BYTES_PER_RUN
    assert [round(pace / 1e8, 2) for pace in paces[1:]] == [1.0, 1.0, 1.0], "a person who thinks for a minute changes nothing"
