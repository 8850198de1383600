"""Prompts are ubatches longer than a decode step, in nodes of ours: every length, cache type and mask, at any depth, for each number of
threads; their place in the graph, and what observers see."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from support.contexts import attached, drop, dropped
from support.decoding import kld
from support.double import Reference, as_values

from edgekv import _native
from edgekv._native import paging
from edgekv.config import KvOptions
from edgekv.runtime.runtime import Runtime

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place

pytestmark = pytest.mark.usefixtures("single_precision")

SIZES = (17, 64, 200)
DEPTH = 300
SINGLE = 1e-4
"""The bound of arithmetic: KLD from double precision where weights and activations are F32, in nats."""
NEAR = 1e-3
"""The bound of one kernel from another, stock's own included; a cell too many or too few costs a thousand times that."""
OUTPUT = 2e-2
"""The bound for an attended value of standard deviation 1: operands may be rounded to 8 bits of mantissa."""
F16, Q8_0, Q4_0 = 1, 8, 2
ALONE = dict(n_seq=1, n_threads=1)

_ggml = ctypes.CDLL(str(next(_native.lib_dir().glob("libggml-base.so*"))))
_ggml.ggml_get_name.restype, _ggml.ggml_get_name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
_ggml.ggml_get_data.restype, _ggml.ggml_get_data.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
_ggml.ggml_nelements.restype, _ggml.ggml_nelements.argtypes = ctypes.c_int64, [ctypes.c_void_p]


class Nodes:
    """Of each graph: the names of its nodes in the order of their computation, and, of steps in which it is `on`, copies of the queries ("Qcur") and of the
    attention's output ("kqv_out") of each layer. `arguments` are for the Context."""

    def __init__(self) -> None:
        self.on = False
        self.names: list[str] = []
        self.found: dict[str, np.ndarray] = {}
        """float32, flat; of several with one name the last."""
        callback = llama_cpp.ggml_backend_sched_eval_callback(self._seen)
        self.arguments = {"cb_eval": callback}

    def _seen(self, tensor: int, ask: bool, _: int) -> bool:
        name = _ggml.ggml_get_name(tensor).decode()
        if ask:
            self.names.append(name)
        wanted = self.on and name.startswith(("Qcur-", "kqv_out-"))
        if wanted and not ask:
            n = _ggml.ggml_nelements(tensor)
            self.found[name] = np.ctypeslib.as_array((ctypes.c_float * n).from_address(_ggml.ggml_get_data(tensor))).copy()
        return wanted or not ask


def full(run: Runtime, q: np.ndarray, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Attention of a query of layer 0 over these cells of stream 0 in double precision: float64 outputs [query head, head_dim] and mass [query head, cell].
    The cache is f16: other types are stored turned."""
    keys, values = (as_values(rows(0)[0][cells]) for rows in (run.cells.keys, run.cells.values))
    q = q.reshape(-1, keys.shape[2]).astype(np.float64)
    keys, values = (np.repeat(rows, len(q) // keys.shape[1], axis=1) for rows in (keys, values))
    logits = np.einsum("hd,chd->hc", q, keys) / np.sqrt(q.shape[1])
    mass = np.exp(logits - logits.max(axis=1, keepdims=True))
    mass /= mass.sum(axis=1, keepdims=True)
    return np.einsum("hc,chd->hd", mass, values), mass


def random_tokens(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(260, 350, n)


def fill(context, run: Runtime, n: int, sequence: int = 0, seed: int = 9) -> None:
    """Stock nodes read n tokens."""
    mode, run.mode = run.mode, "off"
    if n:
        context.decode(random_tokens(n, seed), range(n), [sequence] * n)
    run.mode = mode


# ---- the same logits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "sizes", "shape", "types"), [
    (0, SIZES, {}, (F16, F16)), (DEPTH, SIZES, {}, (Q8_0, Q4_0)), (DEPTH, (40, 63), {"head_dim": 128, "n_head": 5, "n_head_kv": 1}, (Q4_0, Q4_0)),
    (DEPTH, (40, 63), {"head_dim": 96, "n_head": 2}, (F16, Q8_0)), (DEPTH, (40, 63), {"head_dim": 256, "n_head": 2, "n_head_kv": 1}, (Q8_0, F16))])
def test_logits_are_those_of_double_precision(synthetic, depth, sizes, shape, types):
    """Attention reads the stored rows, the prompt's own included: they must be stored before they are attended. Each kernel, size and type has
    tests of its own (native/tests/host/test_prompt.cpp)."""
    path = synthetic("llama", dtype="f32", **{"n_head": 6} | shape)
    reference = Reference(path)
    with attached(path, KvOptions(mode="exact"), n_ctx=1024, **ALONE, n_batch=1024, n_ubatch=1024, type_k=types[0],
                  type_v=types[1]) as (context, run):
        fill(context, run, depth)
        for i, n in enumerate(sizes):
            tokens = [*random_tokens(depth, 9), *random_tokens(n)]
            ours = context.decode(tokens[depth:], range(depth, depth + n), [0] * n)
            assert run.stats.n_ubatches_hooked == i + 1 and run.stats.n_tokens_hooked == sum(sizes[: i + 1])
            stored = [[rows(layer)[0, : depth + n] for layer in (0, 1)] for rows in (run.cells.keys, run.cells.values)]
            expected, _ = reference.logits(tokens, depth, *stored)
            assert kld(expected, ours).max() < SINGLE, n
            llama_cpp.llama_memory_seq_rm(context.memory, 0, depth, -1)


# ---- masks ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("unified", "lengths"), [(True, (20, 90, 63)), (False, (40, 40, 40)), (False, (0, 33, 17))])
def test_several_sequences_in_one_batch(synthetic, unified: bool, lengths):
    """One cache holds all sequences, or each has a stream. With split streams a ubatch sees a part of the streams, which may begin behind
    the first."""
    logits = {}
    for mode in ("off", "exact"):
        with attached(synthetic("llama", n_head=6, dtype="f32"), KvOptions(mode=mode), n_ctx=1024 if unified else 3 * 1024, n_seq=3,
                      unified=unified, n_threads=1) as (context, run):
            for sequence, n in enumerate((50, 3, 120)):
                fill(context, run, n, sequence)
            positions = np.concatenate([np.arange(start, start + n) for start, n in zip((50, 3, 120), lengths)])
            sequences = np.repeat([0, 1, 2], lengths)
            order = np.random.default_rng(2).permutation(len(positions)) if unified else np.arange(len(positions))
            order = order[np.argsort(positions[order], kind="stable")] if unified else order
            logits[mode] = context.decode(random_tokens(len(positions)), positions[order], sequences[order])
            assert (run.stats.n_tokens_hooked > 0) == (mode == "exact")
            assert mode == "off" or run.stats.n_tokens_hooked == sum(lengths)
    assert kld(logits["off"], logits["exact"]).max() < NEAR


def test_tokens_that_see_what_follows(synthetic):
    """Without a causal mask every token of the ubatch sees every other."""
    logits = {}
    for mode, causal in (("off", False), ("exact", False), ("exact", True)):
        with attached(synthetic("llama", dtype="f32"), KvOptions(mode=mode), n_ctx=1024, **ALONE) as (context, run):
            fill(context, run, 70)
            llama_cpp.llama_set_causal_attn(context.ctx, causal)
            logits[mode, causal] = context.decode(random_tokens(130), range(70, 200), [0] * 130)
    assert kld(logits["off", False], logits["exact", False]).max() < NEAR < 0.1 < kld(logits["off", False], logits["exact", True]).max()


def test_cells_that_are_reused_and_gaps(synthetic):
    """Cells are in no order of positions: later tokens fill the cells that were freed in the middle."""
    logits = {}
    for mode in ("off", "exact"):
        with attached(synthetic("llama", dtype="f32"), KvOptions(mode=mode), n_ctx=512, **ALONE) as (context, run):
            fill(context, run, 400)
            llama_cpp.llama_memory_seq_rm(context.memory, 0, 40, 201)
            logits[mode] = context.decode(random_tokens(250), range(400, 650), [0] * 250)
            assert (np.diff(run.cells.stream().positions[:300]) < 0).any(), "no longer in their order"
    assert kld(logits["off"], logits["exact"]).max() < NEAR


# ---- pages that heads dropped ------------------------------------------------------------------------------------------------------


def expected_outputs(run: Runtime, q: np.ndarray, n_tokens: int, n_head_kv: int, seen: Callable[[int, int], np.ndarray]):
    """Outputs [token, query head, head_dim] and mass [token, query head, cell] of layer 0 in double precision; seen(token, KV head)."""
    outputs, masses = [], []
    for token, query in enumerate(q.reshape(n_tokens, -1)):
        output, mass = [], []
        for kv in range(n_head_kv):
            cells = seen(token, kv)
            attended, attention = full(run, query, cells)
            group = len(attended) // n_head_kv
            spread = np.zeros((group, run.cells.n_cells))
            spread[:, cells] = attention[kv * group : (kv + 1) * group]
            output.append(attended[kv * group : (kv + 1) * group])
            mass.append(spread)
        outputs.append(np.concatenate(output))
        masses.append(np.concatenate(mass))
    return np.array(outputs), np.array(masses)


@pytest.mark.parametrize("sizes", [(1, 1, 9), (40,), (17, 100), (200,)])
def test_what_a_head_dropped_is_not_attended(synthetic, monkeypatch, sizes):
    """Each head's output and observed mass follow from the pages that it kept, while steps, prompts and drops go on. Back in mode exact all that
    is left is attended: tokens that lost their rows in some layer are gone."""
    nodes = Nodes()
    options = KvOptions(mode="evict", evict_to=1024, policy="anchor+recent")
    with attached(synthetic("llama", n_head=6, dtype="f32"), options, n_ctx=1024, **ALONE, **nodes.arguments) as (context, run):
        fill(context, run, 230)
        monkeypatch.setattr(run._tiering.hierarchy, "evict", lambda: None)  # it would free what all heads dropped
        rng, shape = np.random.default_rng(3), paging.page_arrays(run._native_handle()).shape
        mass: list[np.ndarray] = []
        run.observers.append(lambda step: mass.append((step.n_observed, step.mass_sum[0].copy(), step.mass_max[0].copy())))
        nodes.on, position = True, 230
        for n, mode in [*((n, "evict") for n in sizes), (30, "exact")]:
            mask = (rng.random(shape) < 0.3) & ~dropped(run).astype(bool)
            mask[:, :, position // 16 - 1 :] = False
            drop(run, mask)
            run.mode = mode
            context.decode(random_tokens(n, n), range(position, position + n), [0] * n)
            gone = dropped(run).astype(bool)
            assert gone[0].any()

            def seen(token: int, kv: int) -> np.ndarray:
                positions = run.cells.stream().positions
                cells = np.flatnonzero((positions >= 0) & (positions <= position + token))
                return cells[~gone[0, kv, cells // 16]] if mode == "evict" else cells

            assert run.cells.stream().n_used == position + n if mode == "evict" else run.cells.stream().n_used < position + n
            outputs, masses = expected_outputs(run, nodes.found["Qcur-0"], n, 2, seen)
            found = nodes.found["kqv_out-0"].reshape(outputs.shape)
            assert np.abs(found - outputs).max() < OUTPUT
            n_observed, mass_sum, mass_max = mass[-1]
            assert n_observed == (min(n, 16) if mode == "evict" else 0)
            assert_observed(mass_sum, mass_max, masses[-16:] if mode == "evict" else 0 * masses[-16:])
            position += n


# ---- what is observed --------------------------------------------------------------------------------------------------------------


def assert_observed(mass_sum: np.ndarray, mass_max: np.ndarray, masses: np.ndarray) -> None:
    """Of one layer and stream, [kv_head, page], against [token, query head, cell]."""
    pages = masses.reshape(*masses.shape[:2], -1, 16).sum(axis=3).reshape(len(masses), len(mass_sum), -1, masses.shape[2] // 16)
    np.testing.assert_allclose(mass_sum, pages.sum(axis=(0, 2)), atol=OUTPUT)
    np.testing.assert_allclose(mass_max, pages.max(axis=2).sum(axis=0), atol=OUTPUT)


def test_each_stream_is_observed(synthetic):
    """Streams are read side by side, and each one's last tokens are observed: its pages hold as much mass as if it were alone."""
    lengths, alone = (40, 40), []
    for unified_n in (0, 1, 2):
        with attached(synthetic("llama", dtype="f32"), KvOptions(mode="sparse"), n_ctx=2 * 1024, n_seq=2, unified=False, n_threads=1) as (context, run):
            told = []
            sequences = np.repeat([0, 1], lengths) if unified_n == 2 else np.full(40, unified_n)
            tokens = random_tokens(80)[np.repeat([0, 1], lengths) == sequences] if unified_n == 2 else random_tokens(80)[40 * unified_n :][:40]
            run.observers.append(lambda step: told.append((step.n_observed, step.pages_per_stream, step.mass_sum.copy())))
            context.decode(tokens, [*range(40)] * (len(tokens) // 40), sequences)
            alone.append(told)
    (first,), (second,), (both,) = alone
    assert (first[0], second[0], both[0]) == (16, 16, 32)
    assert first[2][..., : first[1]].any() and not first[2][..., first[1] :].any()
    assert second[2][..., second[1] :].any() and not second[2][..., : second[1]].any()
    np.testing.assert_allclose(first[2] + second[2], both[2], atol=1e-3)


# ---- the graph, and threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [(F16, F16), (Q8_0, Q4_0)])
def test_any_number_of_threads_gives_the_same(synthetic, types):
    """The outputs agree bit for bit, of the same queries: they do not depend on which thread took an item. Graphs that are reused, or built
    anew for more threads, agree too."""
    nodes = Nodes()
    outputs = []
    for n_threads in ((1,), (2,), (5,), (1, 5, 2)):
        with attached(synthetic("llama", n_head=6, dtype="f32"), KvOptions(mode="sparse"), n_ctx=1024, n_seq=1, n_threads=1,
                      type_k=types[0], type_v=types[1], **nodes.arguments) as (context, run):
            mass: list[np.ndarray] = []
            run.observers.append(lambda step, mass=mass: mass.append(step.mass_sum[0].copy()))
            nodes.on = True
            for n in n_threads:
                llama_cpp.llama_set_n_threads(context.ctx, n, n)
                context.decode(random_tokens(300), range(300), [0] * 300)
                outputs.append((nodes.found["Qcur-0"], nodes.found["kqv_out-0"], mass[-1]))
                llama_cpp.llama_memory_seq_rm(context.memory, 0, -1, -1)
    for found in outputs[1:]:
        for one, other in zip(outputs[0], found):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("kind", "n_served", "mode"), [("llama", 2, "exact"), ("llama", 2, "sparse"), ("gemma2", 1, "sparse"), ("gemma2", 1, "evict")])
def test_rows_are_stored_and_the_mask_is_classified_before_anything_is_attended(synthetic, kind: str, n_served: int, mode: str):
    """The order of a graph's nodes is the only barrier. A mask is classified once for all layers that have it: windows have one of their own."""
    nodes = Nodes()
    with attached(synthetic(kind), KvOptions(mode=mode, evict_to=1024), n_ctx=1024, **ALONE, **nodes.arguments) as (context, run):
        nodes.names.clear()
        context.decode(random_tokens(100), range(100), [0] * 100)
        hooked, whole = ([il for il, layer in enumerate(run.layers) if getattr(layer, how)] for how in ("hooked", "whole"))
    names = nodes.names
    firsts = sorted(layers[0] for layers in (hooked, whole) if layers)
    assert len(hooked) == n_served and len(hooked + whole) == 2
    assert [name for name in names if name.startswith("edgekv_seen")] == [f"edgekv_seen-{il}" for il in firsts]
    for il in hooked + whole:
        attend = names.index(f"kqv_out-{il}")
        stores = [f"edgekv_store-{il}"] if mode == "sparse" and il in hooked else [f"cache_k_l{il} (view)", f"cache_v_l{il} (view)"]
        assert all(max(i for i, name in enumerate(names) if name == store) < attend for store in stores)
        assert names.index(f"edgekv_seen-{(hooked if il in hooked else whole)[0]}") < attend
