"""The identity of rows follows from the context as it was built: it differs where one thing that rows depend on differs, and only there."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.contexts import Context, attached

from edgekv._native import core, token_rows
from edgekv.config import KvOptions
from edgekv.runtime.cells import EARLIER, SAMPLED
from edgekv.runtime.runtime import Runtime

import llama_cpp

Q8_0 = llama_cpp.GGML_TYPE_Q8_0
Built = tuple[Context, Runtime]


@pytest.fixture
def tiny(synthetic) -> Path:
    return synthetic("llama", n_layer=4)


@contextmanager
def built(model: Path, options: KvOptions = KvOptions(), **params: Any) -> Iterator[Built]:
    with attached(model, options, n_threads=1, **({"n_seq": 1} | params)) as made:
        yield made


def of(model: Path, **params: Any) -> bytes:
    with built(model, **params) as (_, run):
        return run.tokens.depends_on()


def row_of(model: Path, **params: Any) -> np.ndarray:
    """K and V of a few tokens, uint8: they tell whether anything changed at all."""
    with built(model, **params) as (context, run):
        context.decode([1, 270, 280, 290], range(4), [0] * 4)
        k_bytes, v_bytes = run.tokens.row_bytes()
        return run.tokens.read(0, run.tokens.cells_of(0, 4), 4 * (sum(k_bytes) + sum(v_bytes))).copy()


YARN = {"rope_scaling_type": llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN, "rope_freq_scale": 0.5, "yarn_orig_ctx": 256}

ONE_THING = {
    "rope base": ({}, {"rope_freq_base": 20000.0}),
    "rope scale": ({}, {"rope_freq_scale": 0.5}),
    "rope scaling": ({"rope_freq_scale": 0.5}, YARN | {"yarn_orig_ctx": 0}),
    "yarn ext factor": (YARN, {"yarn_ext_factor": 0.5}),
    "yarn attn factor": ({"rope_freq_scale": 0.5}, {"yarn_attn_factor": 0.5}),
    "yarn beta fast": (YARN, {"yarn_beta_fast": 16.0}),
    "yarn beta slow": (YARN, {"yarn_beta_slow": 2.0}),
    "yarn context": (YARN, {"yarn_orig_ctx": 512}),
    "type of K": ({}, {"type_k": Q8_0}),
    "type of V": ({}, {"type_v": Q8_0}),
    "attention": ({}, {"attention_type": llama_cpp.LLAMA_ATTENTION_TYPE_NON_CAUSAL}),
}
"""The context's parameters, and the one that changes then."""


@pytest.mark.parametrize("name", ONE_THING)
def test_one_changed_parameter_is_another_identity(tiny, name):
    common, changed = ONE_THING[name]
    before, after = common, common | changed
    assert of(tiny, **before) != of(tiny, **after)
    assert of(tiny, **after) == of(tiny, **after)
    assert not np.array_equal(row_of(tiny, **before), row_of(tiny, **after))  # the case is one


def test_an_overridden_hyperparameter(tiny):
    """Parameters that no graph shows count too: the file says one thing, and the loaded model another."""
    def overridden(key: bytes, value: float) -> bytes:
        overrides = (llama_cpp.llama_model_kv_override * 2)()
        overrides[0].tag, overrides[0].key = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_FLOAT, key
        overrides[0].value.val_f64 = value
        return of(tiny, model_params={"kv_overrides": overrides})

    assert len({of(tiny), overridden(b"llama.attention.layer_norm_rms_epsilon", 1e-3), overridden(b"llama.rope.freq_base", 5000.0)}) == 3
    assert overridden(b"llama.rope.freq_base", 10000.0) == of(tiny)


def test_another_architecture(synthetic):
    """One of the models normalises queries and keys; cache, types and rotary embedding are alike."""
    assert len({of(synthetic("llama")), of(synthetic("qwen3")), of(synthetic("llama", n_layer=3)), of(synthetic("llama", rope_base=5000.0))}) == 4


def test_the_versions_count(tiny):
    """The build of llama.cpp and of our kernels: every source counts (tests/native/test_sources.py)."""
    told: list[bytes] = []
    with built(tiny) as (_, run):
        token_rows.describe(run._native_handle(), 0, told.append)
    version, upstream, sources = told[0].decode().splitlines()
    assert (version, upstream) == (core.version(), core.upstream()) and len(bytes.fromhex(sources)) == 16


def test_what_was_sampled_before_the_settings_changed_is_labelled(tiny):
    """Steps on a device label nothing, so that all tokens may have been sampled."""
    with built(tiny) as (context, run):
        context.decode([1, 270, 280, 290], range(4), [0] * 4)
        token_rows.labels_in_place(run._native_handle(), 0)[1] = SAMPLED
        assert run.cells.stream().labels[:5].tolist() == [0, SAMPLED, 0, 0, 0]
        run.tokens.settings_change(sampled=False)
        assert run.cells.stream().labels[:5].tolist() == [0, SAMPLED | EARLIER, 0, 0, 0]
        run.tokens.settings_change(sampled=True)
        assert run.cells.stream().labels[:5].tolist() == [SAMPLED | EARLIER] * 4 + [0]
        context.decode([300], [4], [0])
        assert run.cells.stream().labels[4] == 0  # a new token begins anew


# ---- what changes no row ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "params"), [
    *(("llama", params) for params in ({"n_ctx": 2048}, {"n_seq": 4}, {"n_seq": 4, "unified": False}, {"n_batch": 64, "n_ubatch": 32}, {"n_threads_batch": 2},
                                       {"options": KvOptions(mode="sparse")}, {"options": KvOptions(mode="off")}, {"embeddings": True})),
    *((kind, {"n_ctx": 2048, "n_seq": 4, "unified": False, "options": KvOptions(mode="off")}) for kind in ("deepseek32", "mamba"))], ids=str)
def test_what_changes_no_row_is_the_same_identity(synthetic, kind, params):
    assert of(synthetic(kind), **params) == of(synthetic(kind))


def test_it_is_the_same_in_another_process(tiny):
    code = ("import sys; from edgekv.runtime.runtime import Runtime; from edgekv.llama import Llama; "
            "llama = Llama(sys.argv[1], n_ctx=512, verbose=False); print(llama.kv.tokens.depends_on().hex())")
    there = subprocess.run([sys.executable, "-c", code, str(tiny)], capture_output=True, text=True, check=True)
    assert there.stdout.split()[-1] == of(tiny).hex()


def test_transposed_values_are_others(tiny):
    assert of(tiny, flash_attn_type=llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED) != of(tiny)


def test_a_signal_in_the_middle_of_a_description_is_raised_to_who_asked(tiny):
    """Python runs the handlers of signals in callbacks too; `edgekv serve` did not hear the one that was to end it."""
    def interrupted(_: bytes) -> None:
        raise KeyboardInterrupt

    with built(tiny) as (_, run), pytest.raises(KeyboardInterrupt):
        token_rows.describe(run._native_handle(), 0, interrupted)


def test_it_is_the_same_at_any_time(tiny):
    """The adapters count also between decodes: the next decode uses the graph again, and another request had set other adapters."""
    with built(tiny) as (context, run):
        before = run.tokens.depends_on()
        first = context.decode([1, 270, 280], range(3), [0] * 3)
        assert run.tokens.depends_on() == before
        context.decode([300], [3], [0])
        assert run.tokens.depends_on() == before
        llama_cpp.llama_memory_clear(context.memory, True)
        assert np.array_equal(context.decode([1, 270, 280], range(3), [0] * 3), first)
