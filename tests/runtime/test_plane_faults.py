"""The device plane under faults: refusals, failures, contexts that end, memory that is given back."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from msgspec.structs import replace
from support.contexts import attached
from support.decoding import kld
from support.events import check
from support.fake_gpus import RATES
from support.planes import ALL, device_bytes, logits_of, open_model, plane_of

from edgekv._native import core, device_calls
from edgekv.common.enums import DeviceKind
from edgekv.common.errors import ConfigError, CudaUnavailable, DoesNotFit, EdgeKVError, TierError
from edgekv.config import KvOptions
from edgekv.runtime import context, effective, wiring

pytestmark = pytest.mark.usefixtures("emulator", "single_precision")


def test_what_is_refused_takes_no_memory(synthetic):
    """The staging buffer is allocated before the rest finds no room."""
    options = KvOptions(attention_device="emulated", mode="exact", kv_vram=1000)
    with attached(synthetic("llama"), options, n_ctx=256, n_seq=1, n_threads=1) as (context, run):
        handle = core.find(context.address)
        problem = core.device_problem(handle)
        assert run is None and isinstance(problem, DoesNotFit) and "on the GPU is too small" in str(problem) and device_calls.plane(handle) is None
        memory = core.memory(handle)
        assert (memory.workspace_bytes, memory.device_bytes) == (0, 0)


@pytest.mark.parametrize(("kind", "why"), [("deepseek2", "compressed KV"), ("mamba", "recurrent")])
def test_a_model_without_layers_to_serve_is_refused_with_their_reason(synthetic, kind: str, why: str):
    with pytest.raises(EdgeKVError, match=f"none of its layers can be served: {why}"):
        open_model(synthetic(kind))


def test_what_fails_while_a_context_is_attached_is_raised_where_it_was_asked_for(synthetic, monkeypatch):
    def operations(handle):
        raise RuntimeError("a library is missing")

    monkeypatch.setattr(context, "operations", operations)
    with pytest.raises(EdgeKVError, match="a library is missing"):
        open_model(synthetic("llama"), mode="exact")


def test_a_context_is_freed_while_pages_are_on_their_way(synthetic):
    llama = open_model(synthetic("llama"), plan_every=1, **ALL)
    logits_of(llama)
    for token in range(40):  # until a page is full and its copy begins
        llama.eval([260 + token])
        if llama.kv.tiers().n_moving:
            break
    assert llama.kv.tiers().n_moving > 0
    llama.close()


@pytest.mark.parametrize("mode", ["exact", "sparse"])
def test_mode_off_gives_the_memory_of_the_arena_back(synthetic, mode: str):
    path = synthetic("llama")
    llama = open_model(path, **ALL | {"mode": mode})
    expected, full = logits_of(llama), llama.kv.memory().arena_bytes
    free = device_bytes()[0]
    logits_of(llama, (1,) * 40)
    assert full > 0 and llama.kv.tiers().n_resident > 0
    for change in (lambda to: setattr(llama.kv, "mode", to), lambda to: llama.kv.configure(llama.kv.options.with_(mode=to))):
        change("off")
        assert llama.kv.memory().arena_bytes == 0 and device_bytes()[0] >= free + full
        logits_of(llama)
        change(mode)
        assert llama.kv.memory().arena_bytes == full and device_bytes()[0] <= free
        assert np.array_equal(logits_of(llama), expected) or mode == "sparse"
        logits_of(llama, (1,) * 40)
        assert check(llama.kv).n_slots > 0 and llama.kv.tiers().n_resident > 0


def test_a_mode_that_is_refused_takes_nothing_apart(synthetic):
    """The thread that decodes uses the arena while another asks for mode off."""
    with ThreadPoolExecutor(1) as pool, attached(synthetic("llama"), KvOptions(attention_device="emulated", **ALL), n_seq=1, n_threads=1) as (context, run):
        context.decode(range(260, 340), range(80), [0] * 80)
        for position in range(80, 120):
            context.decode([270], [position], [0])
        assert run.tiers().n_slots > 0
        refused: list[BaseException | None] = []
        run.observers.append(lambda ubatch: refused.append(pool.submit(setattr, run, "mode", "off").exception()))
        context.decode([271], [120], [0])
        assert [type(error) for error in refused] == [ConfigError] and "decodes on another thread" in str(refused[0])
        assert run.tiers().n_slots > 0
        run.observers.clear()
        context.decode([272], [121], [0])


def test_the_arena_gives_memory_back_when_it_is_asked(synthetic):
    llama = open_model(synthetic("llama"), mode="exact")
    expected, full = logits_of(llama), llama.kv.memory().arena_bytes
    slot = plane_of(llama).slot_bytes
    free = device_bytes()[0]
    assert llama.kv.give_back(10 * slot + 1) >= 10 * slot + 1
    left = llama.kv.memory().arena_bytes
    assert 0 < left <= full - 10 * slot and device_bytes()[0] == free + full - left
    llama.kv.mode = "off"
    llama.kv.mode = "exact"
    assert llama.kv.memory().arena_bytes == left, "what was given away stays with those who asked for it"
    assert kld(expected, logits_of(llama)).max() < 1e-4
    assert check(llama.kv).n_slots > 0
    assert llama.kv.give_back(1 << 40) == left and llama.kv.memory().arena_bytes == 0
    assert kld(expected, logits_of(llama)).max() < 1e-4
    assert open_model(synthetic("llama"), "cpu").kv.give_back(1000) == 0


@pytest.fixture
def fails_after(emulator):
    """`fails_after(n)`: the emulated device does n operations and loses the next one."""
    device_calls.count(DeviceKind.EMULATED)  # opens it
    library = ctypes.CDLL(str(emulator))
    library.edgekv_emulator_fails_after.argtypes = [ctypes.c_long]
    yield library.edgekv_emulator_fails_after
    library.edgekv_emulator_fails_after(-1)


@pytest.mark.parametrize(("mode", "node"), [("exact", "edgekv_store-0"), ("sparse", "edgekv_attend-0")])
def test_a_device_that_fails_fails_the_step_by_name(synthetic, fails_after, mode: str, node: str):
    """Any operation may be lost. A loss before the first node is reported as what it is."""
    for n_operations in range(64):
        llama = open_model(synthetic("llama"), **ALL | {"mode": mode})
        logits_of(llama)
        before = llama.n_tokens
        fails_after(n_operations)
        with pytest.raises(CudaUnavailable, match="the GPU failed .*: make the context anew") as told:
            llama.eval([270])
        assert llama.n_tokens == before and llama.kv.memory().n_cells_used == before, "the step left nothing behind"
        fails_after(-1)
        if f"in the node {node}:" in str(told.value):
            break
        llama.close()
    else:
        pytest.fail(f"no operation of {node} was lost")
    with pytest.raises(CudaUnavailable, match=node):  # the first failure stays: rows stored since then are not to be trusted
        llama.eval([270])
    other = open_model(synthetic("llama"), **ALL | {"mode": mode})
    assert np.isfinite(logits_of(other)).all()


def test_the_link_decides_whether_there_is_an_arena_and_how_fast_it_fills(synthetic, monkeypatch):
    """The link alone decides, however often plans are made. Copies follow the time between runs; a person who thinks for a minute changes nothing."""
    llama = open_model(synthetic("llama"), **ALL)
    run, plane = llama.kv, device_calls.plane
    monkeypatch.setattr(device_calls, "plane", lambda handle: replace(plane(handle), kind=DeviceKind.CUDA))
    for link, has_arena in ((RATES.link_gather, True), (RATES.vram, False)):
        monkeypatch.setattr(effective, "rates", lambda kind, index=0: replace(RATES, link_gather=link))
        for plan_every in (1, 32):
            options = run.options.with_(plan_every=plan_every)
            tiering = wiring.tiering(run._native_handle(), options, run.stats, run._ops)
            assert (tiering.hierarchy.table.n_slots > 0) is has_arena
            tiering.resize(options)
            assert (tiering.hierarchy.table.n_slots > 0) is has_arena, "also when a person changes options"
            with monkeypatch.context() as patch:
                patch.setattr(wiring.time, "perf_counter", iter([1.0, 1.1, 1.3, 60.0]).__next__)
                paces = [(tiering._measure(), tiering.hierarchy.migrator.pages_per_run)[1] for _ in range(4)]
            assert paces == [max(wiring.BYTES_PER_RUN, n) // tiering.slot_bytes for n in (0, *[round(0.1 * link * 0.1)] * 3)]
            tiering.close()
    llama.close()


def test_more_slots_than_there_are_is_refused(synthetic):
    llama = open_model(synthetic("llama"), **ALL)
    with pytest.raises(TierError, match="has room for"):
        llama.kv._tiering.hierarchy.transport.pages.resize(plane_of(llama).n_slots_max + 1)


@pytest.fixture
def device_has(emulator):
    """`device_has(n, late, display, pinned)`: the emulated device has n bytes, of which the first launch takes `late`; it may draw a screen, and the host
    pins so many bytes."""
    device_calls.count(DeviceKind.EMULATED)  # opens it
    has = ctypes.CDLL(str(emulator)).edgekv_emulator_has
    has.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_bool, ctypes.c_size_t]
    yield has
    has(8 << 30, 0, False, 1 << 40)


@pytest.mark.parametrize(("display", "left"), [(False, 512 << 20), (True, 1 << 30)])
def test_the_arena_takes_what_the_first_tokens_leave(synthetic, device_has, display: bool, left: int):
    """A driver takes memory with the first launch: the arena is allocated behind that, and leaves room for other programs and for a screen."""
    late = 80 << 20
    plenty = open_model(synthetic("llama"), n_ctx=4096, **ALL)
    free, total = device_bytes()
    wanted = total - free
    arena = plenty.kv.memory().arena_bytes
    plenty.close()
    device_has(left + late + wanted - arena // 2, late, display, 1 << 40)
    llama = open_model(synthetic("llama"), n_ctx=4096, **ALL)
    assert llama.kv.selection().n_selections == llama.kv.cells.stream(0).n_used == 0, "what was computed to see what it takes is forgotten"
    logits_of(llama)
    assert 0 <= device_bytes()[0] - left < plane_of(llama).slot_bytes and 0 < llama.kv.memory().arena_bytes < arena
    assert device_calls.info(DeviceKind.EMULATED).has_display == display
    llama.close()
