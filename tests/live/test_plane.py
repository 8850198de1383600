"""The device plane, end to end on the emulated device: the very kernels, buffers, streams and graph nodes that run on a GPU, under
llama.cpp's CPU backend. The host plane and stock llama.cpp are the yardstick."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.contexts import attached, n_hooked
from support.decoding import kld
from support.double import Reference, as_values, rounding
from support.events import check, follow_events
from support.fake_gpus import RATES

from edgekv import Llama
from edgekv._native import core, device
from edgekv.config import KvOptions
from edgekv.errors import ConfigError, CudaUnavailable, DoesNotFit, EdgeKVError
from edgekv.live import attachments
from edgekv.live.native_pages import NativePages
from edgekv.vocab import DeviceKind

pytestmark = pytest.mark.usefixtures("emulator", "single_precision")

N_PROMPT = 150
STEPS = (1, 1, 2, 5, 16, 1)
LONG_STEPS = (17, 64, 1)
"""Up to 64 tokens run on the plane too, in groups; a longer ubatch is a prompt."""
ALL = dict(mode="sparse", resolution=1e9, exact_tokens=0)
"""Everything is read for certain, of attention as even as that of random weights."""
SAMPLED = dict(mode="sparse", resolution=100, exact_tokens=0, recent_tokens=16)


def open_model(path, device: str = "emulated", *, n_ctx: int = 256, **options) -> Llama:
    return Llama(str(path), kv_options=KvOptions(device=device, **options), n_ctx=n_ctx, n_threads=1, n_threads_batch=1, n_ubatch=N_PROMPT,
                 verbose=False, logits_all=True)


def plane_of(llama: Llama) -> device.Plane:
    found = device.plane(llama.kv._native_handle())
    assert found is not None, core.device_problem(llama.kv._native_handle())
    return found


def logits_of(llama: Llama, steps=STEPS, n_prompt: int = N_PROMPT, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    llama.reset()
    llama._ctx.kv_cache_clear()
    tokens = rng.integers(260, 350, n_prompt + sum(steps)).tolist()  # the same, however they are divided
    llama.eval(tokens[:n_prompt])
    first = llama.n_tokens
    for n in steps:
        llama.eval(tokens[llama.n_tokens : llama.n_tokens + n])
    return np.array(llama.scores[first : llama.n_tokens])


SINGLE = 1e-3**2 / 2
"""KLD of two planes with F32 weights. Sums in another order move a logit, of standard deviation 2.3, by about 1e-4; where that makes the
rounding of a stored key or value flip, 2^-11 of one channel, by less than 1e-3. And shifts of logits by at most e make a divergence of
at most e^2 / 2 (Hoeffding)."""

SLACK = 32
"""Times the largest error of NumPy in single precision, which sums in another order: other orders and functions are 1 to 5 times as far
from double precision (48 models), a query in 8 bits 2,000 times."""


def link_bytes() -> int:
    """What the emulated device has read of host memory: by copies, and by kernels in place."""
    path = next(Path(line.split(maxsplit=5)[5].strip()) for line in Path("/proc/self/maps").read_text().splitlines() if "libedgekv-emulated" in line)
    count = ctypes.CDLL(str(path)).edgekv_emulated_link_bytes
    count.restype = ctypes.c_uint64
    return count()


def cache_bytes(llama: Llama) -> int:
    """All pages that hold a token."""
    tiers = llama.kv.tiers()
    return (tiers.n_resident + tiers.n_home + tiers.n_filling + tiers.n_moving) * tiers.slot_bytes


@pytest.mark.parametrize(("kind", "shape"), [
    ("llama", {}), ("llama", {"head_dim": 80}), ("llama", {"head_dim": 72}), ("llama", {"head_dim": 128, "n_head": 5, "n_head_kv": 1}),
    ("qwen3", {}), ("gemma2", {}), ("gpt-oss", {}), ("lfm2", {})])
@pytest.mark.parametrize("mode", ["exact", "sparse"])
def test_logits_are_those_of_the_host_plane(synthetic, kind, shape, mode):
    path, options = synthetic(kind, dtype="f32", **shape), ALL if mode == "sparse" else {"mode": "exact"}
    exact = logits_of(open_model(path, "cpu"))
    llama = open_model(path, **options)
    plane_of(llama)
    before = n_hooked(llama.kv)
    ours = logits_of(llama)
    assert n_hooked(llama.kv) - before == len(STEPS)
    assert kld(exact, ours).max() <= SINGLE
    check(llama.kv)


@pytest.mark.parametrize(("shape", "types", "steps"), [
    ({}, {}, STEPS), ({"head_dim": 80}, {}, STEPS), ({"head_dim": 128, "n_head": 5, "n_head_kv": 1}, {}, STEPS), ({}, {"type_v": "q8_0"}, STEPS),
    ({"head_dim": 96}, {"type_k": "q8_0"}, STEPS), ({"head_dim": 256}, {"type_k": "q8_0", "type_v": "q8_0"}, STEPS),
    ({"head_dim": 128, "n_head": 5, "n_head_kv": 1}, {"type_k": "q8_0", "type_v": "q8_0"}, LONG_STEPS)])
@pytest.mark.parametrize("mode", ["exact", "sparse"])
def test_logits_are_those_of_double_precision(synthetic, shape, types, steps, mode):
    """Over the rows that are stored, and what is stored is what should be, but for its rounding: quantised caches too, whose queries the
    host plane quantises and the device does not, so that the planes differ by more than arithmetic."""
    path, options = synthetic("llama", dtype="f32", **shape), types | (ALL if mode == "sparse" else {"mode": "exact"})
    llama = open_model(path, **options)
    plane_of(llama)
    ours = logits_of(llama, steps)
    assert n_hooked(llama.kv) == len(steps)
    tokens, cells = llama.input_ids[: llama.n_tokens].tolist(), llama.kv.cells
    assert np.array_equal(cells.stream(0).positions[: len(tokens)], np.arange(len(tokens)))
    stored = [[rows(layer)[0, : len(tokens)] for layer in (0, 1)] for rows in (cells.keys, cells.values)]
    expected, due = Reference(path).logits(tokens, N_PROMPT, *stored)
    single, due_single = Reference(path, np.float32).logits(tokens, N_PROMPT, *stored)
    assert np.abs(ours - expected).max() <= SLACK * np.abs(single - expected).max()
    for part in (0, 1):  # K, V
        for layer in (0, 1):
            should, single = due[layer][part], due_single[layer][part]
            rows = stored[part][layer][N_PROMPT:]
            assert (np.abs(as_values(rows) - should) <= rounding(rows) + SLACK * np.abs(single - should).max()).all()


@pytest.mark.parametrize(("kind", "shape"), [("llama", {}), ("llama", {"head_dim": 128, "n_head": 5, "n_head_kv": 1}), ("gpt-oss", {})])
@pytest.mark.parametrize("mode", ["exact", "sparse"])
def test_steps_of_up_to_64_tokens_run_on_the_plane(synthetic, kind, shape, mode):
    path, options = synthetic(kind, dtype="f32", **shape), ALL if mode == "sparse" else {"mode": "exact"}
    singles = (1,) * sum(LONG_STEPS)  # more than 16 at once are a prompt on the host plane, for another kernel
    exact = logits_of(open_model(path, "cpu"), singles)
    bound = SINGLE
    if kind == "gpt-oss":  # its layers with a window are read by stock's nodes in any case: stock's own distance, over all positions
        stock = open_model(path, "cpu", mode="off")
        bound = 2 * kld(logits_of(stock, singles), logits_of(stock, LONG_STEPS)).mean()
    llama = open_model(path, **options)
    before = n_hooked(llama.kv)
    ours = logits_of(llama, LONG_STEPS)
    assert n_hooked(llama.kv) - before == len(LONG_STEPS)
    assert (kld(exact, ours).mean() if kind == "gpt-oss" else kld(exact, ours).max()) <= bound
    check(llama.kv)


@pytest.mark.parametrize("options", [{"mode": "exact"}, ALL], ids=["exact", "sparse"])
def test_a_long_step_brings_no_resident_page_over_the_link(synthetic, options):
    llama = open_model(synthetic("llama"), n_ctx=512, **options)
    logits_of(llama, (1,) * 60, n_prompt=300)
    tiers = llama.kv.tiers()
    assert tiers.n_resident > 0.9 * (tiers.n_resident + tiers.n_home)
    before = link_bytes()
    llama.eval(list(range(260, 300)))
    assert link_bytes() - before < cache_bytes(llama) / 4


@pytest.mark.parametrize("options", [{"mode": "exact"}, ALL], ids=["exact", "sparse"])
def test_a_prompt_brings_no_resident_page_over_the_link(synthetic, options):
    path = synthetic("llama", dtype="f32")
    llama = open_model(path, n_ctx=1024, **options)
    logits_of(llama, (1,) * 60, n_prompt=300)
    tiers = llama.kv.tiers()
    in_slots = tiers.n_resident * tiers.slot_bytes
    assert in_slots > 0.75 * cache_bytes(llama)
    before = link_bytes()
    llama.eval(list(range(260, 350)))
    in_view = 512 / 360 * cache_bytes(llama) * 360 / 450  # also what the prompt itself is about to write
    assert link_bytes() - before < in_view - in_slots + 10_000, "besides a few kilobytes of tables"
    exact = logits_of(open_model(path, "cpu", n_ctx=1024), (150, 100, 1), n_prompt=300)
    assert kld(exact, logits_of(llama, (150, 100, 1), n_prompt=300)).max() <= SINGLE
    check(llama.kv)


@pytest.mark.parametrize("options", [{"mode": "exact"}, ALL], ids=["exact", "sparse"])
def test_a_prompt_fills_the_arena_on_its_way(synthetic, options, monkeypatch):
    """Its pages come to the device to be attended, and stay there: no page is fetched for its slot alone before the prompt ends."""
    fetched = []
    gather = NativePages.gather
    monkeypatch.setattr(NativePages, "gather", lambda self, ids, *rest: (fetched.append(len(ids)), gather(self, ids, *rest)))
    llama = open_model(synthetic("llama"), n_ctx=1024, **options)
    before = link_bytes()
    logits_of(llama, (), n_prompt=900)  # six parts, which see 256, 512, 512, 768, 768 and 1,024 cells
    tiers = llama.kv.tiers()
    assert tiers.n_resident * tiers.slot_bytes > 0.6 * cache_bytes(llama) and sum(fetched) == 0
    seen = 3840 / 900 * cache_bytes(llama)
    assert link_bytes() - before < 0.65 * seen, "a page comes once to be attended, and is in its slot from then on"
    check(llama.kv)
    for token in range(40):
        llama.eval([260 + token])
    assert sum(fetched) > 0, "what the last part left"
    check(llama.kv)


@pytest.mark.parametrize(("kind", "shape"), [("llama", {}), ("gemma2", {}), ("gpt-oss", {}), ("llama", {"head_dim": 128, "n_head": 5, "n_head_kv": 1})])
@pytest.mark.parametrize("n_each", [1, 3, 16])
def test_a_sparse_step_reads_what_the_host_reads(synthetic, kind, shape, n_each):
    """But for marks that a rounding moves to a neighbour; soft caps and sinks too."""
    path, steps = synthetic(kind, dtype="f32", **shape), (n_each,) * (48 // n_each)
    seen, logits = {}, {}
    for where in ("cpu", "emulated"):
        llama = open_model(path, where, **SAMPLED | {"error_every": 1})
        logits[where] = logits_of(llama, steps)
        seen[where] = llama.kv.layer_selection()
        check(llama.kv)
    ours, host = seen["emulated"], seen["cpu"]
    assert (ours["n_tokens"] == host["n_tokens"]).all() and (ours["n_visible"] == host["n_visible"]).all()
    assert (ours["n_errors"] == host["n_errors"]).all()
    assert host["n_certain"].sum() < host["n_read"].sum() < 0.9 * host["n_visible"].sum()
    assert ours["n_read"] == pytest.approx(host["n_read"], rel=0.01)
    assert ours["n_certain"] == pytest.approx(host["n_certain"], rel=0.01)
    assert ours["mass"] == pytest.approx(host["mass"], rel=0.01)
    assert ours["error"].sum() == pytest.approx(host["error"].sum(), rel=0.1)
    exact = logits_of(open_model(path, "cpu"), steps)
    assert kld(exact, logits["emulated"]).mean() < 2 * kld(exact, logits["cpu"]).mean()


@pytest.mark.parametrize("attend", ["25%", "48"])
def test_without_sketches_a_step_reads_what_the_policy_says(synthetic, attend):
    path, seen = synthetic("llama", dtype="f32"), {}
    for where in ("cpu", "emulated"):
        llama = open_model(path, where, mode="sparse", sketch="none", attend=attend, exact_tokens=0, recent_tokens=16, policy="lru")
        logits = logits_of(llama, (1,) * 20)
        seen[where] = logits, llama.kv.layer_selection()
    assert kld(*(logits for logits, _ in seen.values())).max() <= SINGLE
    ours, host = seen["emulated"][1], seen["cpu"][1]
    for name in ("n_tokens", "n_visible", "n_read", "n_certain"):
        assert (ours[name] == host[name]).all() and host[name].sum() > 0, name
    assert host["n_read"].sum() < 0.5 * host["n_visible"].sum() and not ours["n_errors"].any()


def test_rows_by_chance_are_read_in_place(synthetic):
    """Where nothing is resident but what is being filled, each row that is read comes over the link once, and V of those that came by chance
    again where their error is estimated."""
    llama = open_model(synthetic("llama"), n_ctx=512, **SAMPLED | {"error_every": 0}, policy="none", prefetch="none", kv_vram=2_000_000)
    logits_of(llama, (1,) * 4, n_prompt=300)
    if llama.kv.tiers().n_slots:
        llama.kv._tiering.close()
    before, selected = link_bytes(), llama.kv.layer_selection()
    for token in range(16):
        llama.eval([260 + token])
    now = llama.kv.layer_selection()
    rows = (now["n_read"] - now["n_hits"]).sum() - (selected["n_read"] - selected["n_hits"]).sum()
    row_bytes = llama.kv.tiers().slot_bytes / llama.kv.options.cache.page_tokens
    assert rows > 0
    assert link_bytes() - before == pytest.approx(rows * row_bytes, rel=0.25), "besides tables, and the keys of the open group"


def test_pages_migrate_and_are_hit(synthetic):
    llama = open_model(synthetic("llama"), **SAMPLED)
    logits_of(llama, (1,) * 60)
    assert check(llama.kv).n_slots > 0
    seen, tiers = llama.kv.selection(), llama.kv.tiers()
    assert seen.hit_rate > 0.1 and tiers.moved_bytes >= tiers.n_promotions * tiers.slot_bytes > 0


def test_cold_pages_come_through_the_ring(synthetic):
    """A budget with room for almost nothing: mode exact streams all but the newest pages, in several fills a layer."""
    path = synthetic("llama", dtype="f32")
    exact = logits_of(open_model(path, "cpu", n_ctx=512), n_prompt=300)
    llama = open_model(path, n_ctx=512, mode="exact")
    plenty = plane_of(llama)
    small = open_model(path, n_ctx=512, mode="exact", kv_vram=9 * plenty.fixed_bytes // 10)  # the ring shrinks with it
    assert plane_of(small).n_slots_max < plenty.n_slots_max
    for opened in (llama, small):
        assert kld(exact, logits_of(opened, n_prompt=300)).max() <= SINGLE


@pytest.mark.parametrize("n_each", [1, 20])
@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("mode", ["exact", "sparse"])
def test_several_sequences(synthetic, unified: bool, mode: str, n_each: int):
    logits = {}
    for where in ("cpu", "emulated"):
        rng = np.random.default_rng(1)
        with attached(synthetic("llama", n_head=6, dtype="f32"), KvOptions(**ALL | {"mode": mode}, device=where),
                      n_ctx=3 * 256, n_seq=3, unified=unified, n_threads=1) as (context, run):
            ends = [70, 90, 120]  # prompts, on both planes
            for seq, n in enumerate(ends):
                context.decode(rng.integers(260, 350, n), range(n), [seq] * n)
            rows = []
            before = n_hooked(run)
            for _ in range(4):
                tokens = rng.integers(260, 350, (3, n_each))
                n_at_once = min(n_each, 5) if where == "cpu" else n_each  # of 3 sequences: the host plane serves 16 tokens
                logits_of_step = []
                for first in range(0, n_each, n_at_once):
                    part = range(first, first + n_at_once)
                    found = context.decode(tokens[:, first : first + n_at_once].ravel(), [end + i for end in ends for i in part],
                                           [seq for seq in range(3) for _ in part])
                    logits_of_step.append(found.reshape(3, n_at_once, -1))
                rows.append(np.concatenate(logits_of_step, axis=1).reshape(3 * n_each, -1))
                ends = [end + n_each for end in ends]
            logits[where] = np.concatenate(rows)
            if where == "emulated":
                assert n_hooked(run) - before == 4
            check(run)
    assert kld(logits["cpu"], logits["emulated"]).max() <= SINGLE


@pytest.mark.parametrize(("sketch", "unified", "page_tokens"), [("b3", True, 16), ("b3", False, 16), ("b3", True, 48)])
def test_sketches_and_arena_follow_every_event(synthetic, sketch: str, unified: bool, page_tokens: int):
    """Removed, copied, shifted, saved and restored cells: always as if built anew."""
    compared, resident = follow_events(synthetic("llama"), 40 if unified else 20, sketch, unified, page_tokens, n_threads=1, device="emulated")
    assert compared > 40 and resident > 20


def test_everything_may_change_while_it_runs(synthetic):
    path = synthetic("llama", dtype="f32")
    llama = open_model(path, mode="exact", n_ctx=512)
    options = llama.kv.options
    logits_of(llama)
    for changes in (SAMPLED, {"sketch": "none"}, {"mode": "off"}, {"mode": "sparse"},
                    {"policy": "lru", "prefetch": "rope"}, {"mode": "exact"}, {"mode": "sparse", "sketch": "b3", "resolution": 20},
                    {"exact_tokens": 1000}, {"policy": "none", "prefetch": "none"}):
        options = options.with_(**changes)
        llama.kv.configure(options)
        for token in range(6):
            llama.eval([260 + token])
        check(llama.kv)
    exact = logits_of(open_model(path, "cpu", n_ctx=512))
    llama.kv.configure(options.with_(**ALL))
    assert kld(exact, logits_of(llama)).max() <= SINGLE


# ---- what can go wrong ----------------------------------------------------------------------------------------------------------


def test_a_budget_that_is_too_small_is_refused(synthetic):
    with pytest.raises(DoesNotFit, match="KV budget .* on the GPU is too small"):
        open_model(synthetic("llama"), kv_vram=1000)


def test_what_is_refused_takes_no_memory(synthetic):
    """The staging buffer is there before it shows that the rest has no room."""
    options = KvOptions(device="emulated", mode="exact", kv_vram=1000)
    with attached(synthetic("llama"), options, n_ctx=256, n_seq=1, n_threads=1) as (context, run):
        handle = core.find(context.address)
        assert run is None and isinstance(core.device_problem(handle), DoesNotFit) and device.plane(handle) is None
        memory = core.memory(handle)
        assert (memory.workspace_bytes, memory.device_bytes) == (0, 0)


def test_a_model_that_cannot_be_served_is_refused(synthetic):
    with pytest.raises(EdgeKVError, match="none of its layers can be served"):
        open_model(synthetic("mamba"))


def test_two_contexts_share_a_device(synthetic):
    path = synthetic("llama")
    one, other = open_model(path, **ALL), open_model(path, mode="exact")
    alone = logits_of(one)
    for _ in range(3):
        one.eval([270])
        other.eval([270])
    assert np.array_equal(logits_of(one), alone)
    one.close()
    other.eval([271])
    assert plane_of(other).n_slots_max > 0


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
    free = device.info(DeviceKind.EMULATED).free_bytes
    logits_of(llama, (1,) * 40)
    assert full > 0 and llama.kv.tiers().n_resident > 0
    for change in (lambda to: setattr(llama.kv, "mode", to), lambda to: llama.kv.configure(llama.kv.options.with_(mode=to))):
        change("off")
        assert llama.kv.memory().arena_bytes == 0 and device.info(DeviceKind.EMULATED).free_bytes >= free + full
        logits_of(llama)
        change(mode)
        assert llama.kv.memory().arena_bytes == full and device.info(DeviceKind.EMULATED).free_bytes <= free
        assert np.array_equal(logits_of(llama), expected) or mode == "sparse"
        logits_of(llama, (1,) * 40)
        assert check(llama.kv).n_slots > 0 and llama.kv.tiers().n_resident > 0


def test_a_mode_that_is_refused_takes_nothing_apart(synthetic):
    """The thread that decodes uses the arena while another asks for mode off."""
    refused = []

    def off(run) -> None:
        try:
            run.mode = "off"
        except ConfigError as error:
            refused.append(str(error))

    def elsewhere(run) -> None:
        thread = threading.Thread(target=off, args=(run,))
        thread.start()
        thread.join()

    with attached(synthetic("llama"), KvOptions(device="emulated", **ALL), n_seq=1, n_threads=1) as (context, run):
        context.decode(range(260, 340), range(80), [0] * 80)
        for position in range(80, 120):
            context.decode([270], [position], [0])
        assert run.tiers().n_slots > 0
        run.observers.append(lambda ubatch: elsewhere(run))
        context.decode([271], [120], [0])
        assert len(refused) == 1 and "decodes on another thread" in refused[0]
        assert run.tiers().n_slots > 0
        run.observers.clear()
        context.decode([272], [121], [0])


def test_the_arena_gives_memory_back_when_it_is_asked(synthetic):
    llama = open_model(synthetic("llama"), mode="exact")
    expected, full = logits_of(llama), llama.kv.memory().arena_bytes
    slot = plane_of(llama).slot_bytes
    free = device.info(DeviceKind.EMULATED).free_bytes
    assert llama.kv.give_back(10 * slot + 1) >= 10 * slot + 1
    left = llama.kv.memory().arena_bytes
    assert 0 < left <= full - 10 * slot and device.info(DeviceKind.EMULATED).free_bytes == free + full - left
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
    """`fails_after(n)`: of the operations on the emulated device n are done, the next is lost."""
    device.count(DeviceKind.EMULATED)  # opens it
    library = ctypes.CDLL(str(emulator))
    library.edgekv_emulator_fails_after.argtypes = [ctypes.c_long]
    yield library.edgekv_emulator_fails_after
    library.edgekv_emulator_fails_after(-1)


@pytest.mark.parametrize("mode", ["exact", "sparse"])
@pytest.mark.parametrize("node", ["edgekv_store-0", "edgekv_attend-0"])
def test_a_device_that_fails_fails_the_step_by_name(synthetic, fails_after, mode: str, node: str):
    """Whichever of its operations is lost; those before the first node are told as what they are."""
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
    with pytest.raises(CudaUnavailable, match=node):  # the first failure stays: what was stored since then is not to be trusted
        llama.eval([270])
    other = open_model(synthetic("llama"), **ALL | {"mode": mode})
    assert np.isfinite(logits_of(other)).all()


def test_the_link_decides_whether_there_is_an_arena(synthetic, monkeypatch):
    """And nothing else: not how often plans are made."""
    llama = open_model(synthetic("llama"), **ALL)
    run, plane = llama.kv, device.plane
    monkeypatch.setattr(device, "plane", lambda handle: replace(plane(handle), kind=DeviceKind.CUDA))
    for link, has_arena in ((RATES.link_gather, True), (RATES.vram, False)):
        monkeypatch.setattr(attachments, "rates", lambda kind, index=0: replace(RATES, link_gather=link))
        for plan_every in (1, 32):
            options = run.options.with_(plan_every=plan_every)
            tiering = run._make_tiering(run._native_handle(), options)
            assert (tiering.hierarchy.table.n_slots > 0) is has_arena
            tiering.resize(options)
            assert (tiering.hierarchy.table.n_slots > 0) is has_arena, "also when a person changes options"
            tiering.close()
    llama.close()


def test_more_slots_than_there_are_is_refused(synthetic):
    from edgekv._native import paging

    llama = open_model(synthetic("llama"), **ALL)
    with pytest.raises((ConfigError, DoesNotFit), match="has room for"):
        paging.set_arena(llama.kv._native_handle(), plane_of(llama).n_slots_max + 1)
