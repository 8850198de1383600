"""Caches whose layers have types of their own: attention, moves, saves and identity follow the type of each layer."""

import json
import logging

import numpy as np
import pytest
from support.contexts import attached, n_hooked
from support.decoding import kld, open_model, step_logits, tokens_and_steps
from support.events import check

import edgekv
from edgekv._native import core
from edgekv.common.enums import CacheType
from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions, LayerTypes
from edgekv.models import geometry
from edgekv.runtime import measured_types

import llama_cpp

Q8, Q4 = CacheType.Q8_0, CacheType.Q4_0
TYPES = LayerTypes((Q8, Q4, Q4, Q8), (Q4, Q4, Q8, Q8))
BY_LAYER = {"type_k": "q4_0", "type_v": "q4_0", "layer_types": TYPES}
COARSE = {"type_k": llama_cpp.GGML_TYPE_Q4_0, "type_v": llama_cpp.GGML_TYPE_Q4_0}
SHAPE = {"n_layer": 4, "n_head": 4, "n_head_kv": 2, "head_dim": 64}
SPARSE = {"mode": "sparse", "exact_tokens": 0, "sample_budget": 1e6, "policy": "none"}


def types_of(run) -> list[tuple[str, str]]:
    return [(layer.type_k, layer.type_v) for layer in run.layers]


@pytest.mark.parametrize("head_dim", [64, 96])
def test_exact_is_stock(synthetic, head_dim: int):
    """Stock nodes attend the same tensors in mode off; the bound is what coarse types cost stock."""
    path = synthetic("llama", **{**SHAPE, "head_dim": head_dim})
    prompt, steps = tokens_and_steps()
    llama = open_model(path, **BY_LAYER)
    assert types_of(llama.kv) == [("q8_0", "q4_0"), ("q4_0", "q4_0"), ("q4_0", "q8_0"), ("q8_0", "q8_0")]
    assert llama.kv.memory().home_bytes == geometry(path).kv_bytes(1024, *llama.kv.options.cache.kinds)
    stock = step_logits(llama, prompt, steps, "off")
    ours = step_logits(llama, prompt, steps, "exact")
    spread = kld(step_logits(open_model(path), prompt, steps, "off"), stock).max()
    assert llama.kv.stats.n_ubatches_hooked == len(steps) and 0 < kld(stock, ours).max() <= spread
    llama.kv.configure(llama.kv.options.with_(**SPARSE))
    assert kld(ours, step_logits(llama, prompt, steps, "sparse")).max() <= spread, "everything is read for certain"
    check(llama.kv)


@pytest.mark.parametrize("options", [{"mode": "exact"}, SPARSE, {"mode": "evict", "evict_to": 256}])
def test_every_mode_serves_them(synthetic, options: dict):
    with attached(synthetic("llama", **SHAPE), KvOptions(**options, **BY_LAYER), n_ctx=1024, n_seq=1, n_batch=64, n_ubatch=64, **COARSE) as (
            context, run):
        context.read(260 + np.arange(400) % 90, 0, 400, most=50)
        for i in range(400, 440):
            assert np.isfinite(context.decode([270], [i], [0])).all()
        assert n_hooked(run) >= 40
        check(run)


@pytest.mark.parametrize("options", [{"mode": "off"}, {"mode": "exact"}, SPARSE], ids=["off", "exact", "sparse"])
def test_rows_and_saves_come_back(synthetic, options: dict):
    with attached(synthetic("llama", **SHAPE, dtype="f32"), KvOptions(**options, **BY_LAYER), n_ctx=1024, **COARSE) as (context, run):
        tokens = 260 + np.random.default_rng(1).integers(0, 90, 305)
        context.decode(tokens[:300], range(300), [0] * 300)
        k_bytes, v_bytes = run.tokens.row_bytes()
        assert [(k, v) for k, v in zip(k_bytes, v_bytes)] == [(136, 72), (72, 72), (72, 136), (136, 136)]
        cells = run.tokens.cells_of(0, 300)
        rows, state = run.tokens.read(0, cells, 300 * sum(k_bytes + v_bytes)), context.save(0)
        stayed = context.decode(tokens[300:], range(300, 305), [0] * 5)
        run.tokens.put(1, 0, rows, range(300), 300, 0)
        context.load(state, 2)
        for sequence in (1, 2):
            came = context.decode(tokens[300:], range(300, 305), [sequence] * 5)
            np.testing.assert_allclose(came, stayed, rtol=0, atol=2e-4 * np.abs(stayed).max())


@pytest.mark.parametrize("first", [Q8, Q4])
def test_a_shift_turns_each_layer_by_its_type(synthetic, first: CacheType):
    """K of the first layer follows from the tokens alone: it is that of a cache in one type."""
    found = []
    by_layer = LayerTypes((first, Q4, Q8, Q4), TYPES.v)
    one = {"type_k": first.ggml_type, "type_v": llama_cpp.GGML_TYPE_Q4_0}
    for options, params in ((KvOptions(type_k="q4_0", type_v="q4_0", layer_types=by_layer), COARSE), (KvOptions(type_k=first, type_v="q4_0"), one)):
        with attached(synthetic("llama", **SHAPE), options, n_ctx=512, n_seq=1, **params) as (context, run):
            context.decode(260 + np.arange(120), range(120), [0] * 120)
            llama_cpp.llama_memory_seq_rm(context.memory, 0, 10, 30)
            llama_cpp.llama_memory_seq_add(context.memory, 0, 30, -1, -20)
            context.decode([270], [100], [0])
            cells = run.tokens.cells_of(0, 100)
            block, k_bytes = run.tokens.read(0, cells, 100 * sum(map(sum, run.tokens.row_bytes()))), run.tokens.row_bytes()[0][0]
            found.append(block[: 100 * k_bytes].tobytes())
    assert found[0] == found[1]


def test_contexts_that_they_are_not_for_keep_their_types(synthetic):
    """A draft model has another number of layers, or f16; and nothing is left behind for the next context."""
    options = KvOptions(**BY_LAYER)
    with attached(synthetic("llama", **{**SHAPE, "n_layer": 3}), options, n_ctx=512, n_seq=1, **COARSE) as (_, run):
        assert types_of(run) == [("q4_0", "q4_0")] * 3
    with attached(synthetic("llama", **SHAPE), options, n_ctx=512, n_seq=1) as (_, run):
        assert types_of(run) == [("f16", "f16")] * 4
    with attached(synthetic("llama", **SHAPE), KvOptions(), n_ctx=512, n_seq=1, **COARSE) as (_, run):
        assert types_of(run) == [("q4_0", "q4_0")] * 4


def test_sliding_layers_have_types_too(synthetic):
    path = synthetic("gemma2", n_layer=4)
    with attached(path, KvOptions(**BY_LAYER), n_ctx=512, n_seq=1, swa_full=False, **COARSE) as (context, run):
        assert types_of(run) == [("q8_0", "q4_0"), ("q4_0", "q4_0"), ("q4_0", "q8_0"), ("q8_0", "q8_0")]
        assert np.isfinite(context.decode([270] * 40, range(40), [0] * 40)).all() and np.isfinite(context.decode([270], [40], [0])).all()


def test_types_that_layers_cannot_have():
    class Odd:
        k = v = (CacheType.F16,)

    with pytest.raises(ConfigError, match="only among the quantised ones"):
        core.set_layer_types(Odd())


# ---- what types cost ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measured_types, "READ_TOKENS", 128)
    monkeypatch.setattr(measured_types, "STEPS", 96)
    return tmp_path


def test_costs_are_measured_once_and_kept(synthetic, short, caplog):
    path = synthetic("llama", **SHAPE)
    model = geometry(path)
    bound = model.kv_bytes_per_token("q8_0", "q4_0") - 1
    done: list[tuple[int, int]] = []
    with caplog.at_level(logging.WARNING, "edgekv"):
        kv = edgekv.with_layer_types(path, KvOptions(mode="exact", kv_bytes=bound), lambda what, n, total: done.append((n, total)), n_threads=1)
        assert [record.message for record in caplog.records if "is measured once" in record.message]
        caplog.clear()
        llama = edgekv.Llama(str(path), kv="exact", kv_bytes=bound, n_ctx=256, n_threads=1, verbose=False)
        assert not caplog.records, "it is known"
    assert done[0][0] == 0 and done[-1] == (18, 18), "f16, stock, eight pairs of types, K and V of four layers"
    assert llama.kv.options.cache == kv.cache and not kv.cache.lacks_types and model.kv_bytes_per_token(*kv.cache.kinds) <= bound
    assert types_of(llama.kv) == list(zip(*kv.cache.kinds))
    assert edgekv.with_layer_types(path, kv) is kv
    (kept,) = json.loads((short / "edgekv" / "type-errors.json").read_text()).values()
    assert len(kept["k"]) == len(kept["v"]) == 4 and len(kept["whole"]) == 8
    assert kept["whole"]["q4_0/q4_0"] > kept["whole"]["q8_0/q8_0"] > 0 and sum(kept["k"]) > 0


def test_a_bound_is_refused_before_anything_is_measured(synthetic, short, monkeypatch):
    path = synthetic("llama", **SHAPE)
    with pytest.raises(ConfigError, match="in the smallest types, and kv_bytes is 100; give 576 or more"):
        edgekv.Llama(str(path), kv_bytes=100, n_ctx=256, verbose=False)
    assert not (short / "edgekv" / "type-errors.json").exists()
    everything = edgekv.with_layer_types(path, KvOptions(kv_bytes=1 << 20))
    assert everything == KvOptions(), "f16 fits"
