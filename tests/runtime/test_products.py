"""Tokens meet quantised weights in our kernels: they are as close to products in floats as ggml's, and stock llama.cpp stays stock."""

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.contexts import attached

from edgekv._native import testing, weight_types
from edgekv._native.quantise import quantise
from edgekv.config import KvOptions
from edgekv.models.model_shape import Experts, ModelShape
from edgekv.models.model_writer import write_model

import llama_cpp

N_TOKENS = (1, 2, 3, 4, 5, 17, 130)
EXPERTS = {"some": Experts(8, 2, 256), "all": Experts(4, 4, 256)}
"""With `all` no token changes its experts because something was rounded."""
GELU = "gelu"
MIXTURES = {"Q4_0": "q4_0", "Q4_1": "q4_1", "Q5_0": "q5_0", "Q5_1": "q5_1", "Q8_0": "q8_0", "Q4_K": "q4_k_m", "Q5_K": "q5_k_m", "Q6_K": "q6_k",
            "IQ4_NL": "iq4_nl", "IQ4_XS": "iq4_xs", "MXFP4": "mxfp4_moe"}
"""By type, a mixture whose main type it is."""


@pytest.fixture
def products() -> Iterator[None]:
    yield
    testing.use_products(None)


@pytest.fixture(scope="module")
def written(synthetic, tmp_path_factory) -> Callable[..., Path]:
    """`written(mixture)`: a small model whose matrices all have its main type; `written(mixture, of)`: one with EXPERTS[of], or with GEGLU."""
    folder = tmp_path_factory.mktemp("types")
    sources = {"": synthetic("llama", n_embd=512, n_ff=768, n_layer=2, dtype="f16")}
    for of, experts in EXPERTS.items():
        shape = ModelShape("experts", "qwen3moe", 2, 512, 768, 4, 2, 128, 384, 4096, 10_000.0, experts=experts)
        sources[of] = write_model(shape, folder / f"{of}.gguf", "f16")
    sources[GELU] = write_model(ModelShape("gelu", "gemma3", 2, 512, 768, 4, 2, 128, 384, 4096, 10_000.0), folder / "gelu.gguf", "f16")

    def write(mixture: str, of: str = "") -> Path:
        target = folder / f"{mixture}-{of}.gguf"
        if not target.exists():
            quantise(sources[of], target, mixture, pure=True)
        return target

    return write


def in_floats(path: Path) -> Path:
    """The same weights in a file of f32, with which ggml quantises no tokens."""
    target = path.with_suffix(".f32.gguf")
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
    if not target.exists():
        assert llama_cpp.llama_model_quantize(os.fsencode(path), os.fsencode(target), ctypes.byref(options)) == 0
    return target


def read(path: Path, mode: str, ours: bool, **loading: object) -> tuple[np.ndarray, list[int]]:
    """Logits of batches of N_TOKENS, float32 [token, n_vocab], and the number of products that our kernel made for each batch."""
    logits, made = [], []
    with attached(path, KvOptions(mode=mode), n_seq=1, model_params=loading) as (context, _):
        before, position = testing.use_products(ours), 0
        for n in N_TOKENS:
            tokens = np.random.default_rng(n).integers(0, 250, n)
            logits.extend(context.decode(tokens, range(position, position + n), [0] * n))
            position += n
            after = testing.use_products(ours)
            made.append(after - before)
            before = after
    return np.array(logits), made


def unlike(one: np.ndarray, other: np.ndarray) -> float:
    """Root mean square of the difference, of the logits' standard deviation."""
    return float(np.sqrt(np.mean((one - other) ** 2)) / other.std())


def unlike_in_the_middle(one: np.ndarray, other: np.ndarray) -> float:
    """The same of the median token: rounding sends a few tokens to other experts."""
    return float(np.sqrt(np.median(np.mean((one - other) ** 2, axis=1))) / other.std())


def n_products(name: str, n_tokens: int, repacked: bool, experts: str) -> int:
    """Of a batch: Q, K, V, what gathers them, and the network's three in each of two layers, and the logits. A few tokens for many experts are left
    to ggml."""
    def serves(of_experts: bool) -> bool:
        return weight_types.multiplied_by_us(name, weight_types.layouts(of_experts)[name] if repacked else None)

    mixes = serves(bool(experts)) and (not experts or n_tokens == 1 or n_tokens * EXPERTS[experts].n_used >= EXPERTS[experts].n)
    return 2 * (4 * serves(False) + 3 * mixes) + serves(False)


@pytest.mark.parametrize(("name", "repacked", "experts"), [
    *((name, repacked, "") for name in MIXTURES for repacked in (True, False)),
    ("Q4_0", True, "all"), ("Q4_K", True, "all"), ("Q6_K", False, "all"), ("MXFP4", False, "all"), ("Q8_0", True, "some"), ("IQ4_NL", False, "some")])
def test_products_are_as_exact_as_ggmls(written, products, name: str, repacked: bool, experts: str):
    """For matrices that ggml repacks where it loads them, and for those as they are in the file."""
    if repacked and weight_types.layouts(bool(experts))[name] is None:
        pytest.skip("ggml has no layout of its own for it here")
    path = written(MIXTURES[name], experts)
    ours, made = read(path, "exact", True, use_extra_bufts=repacked)
    ggml, none = read(path, "exact", False, use_extra_bufts=repacked)
    assert made == [n_products(name, n, repacked, experts) for n in N_TOKENS]
    assert none == [0] * len(N_TOKENS)
    floats, _ = read(in_floats(path), "exact", False)
    if experts == "some":
        assert unlike_in_the_middle(ours, ggml) <= unlike_in_the_middle(ggml, floats)
    else:
        assert unlike(ours, floats) <= 1.1 * unlike(ggml, floats)


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q6_K"])
def test_a_gate_by_gelu_is_as_exact_as_ggmls(written, products, name: str):
    """GEGLU is computed where its result is quantised; ggml looks gelu up in a table of half precision."""
    path = written(MIXTURES[name], GELU)
    ours, made = read(path, "exact", True)
    ggml, _ = read(path, "exact", False)
    floats, _ = read(in_floats(path), "exact", False)
    assert all(made), "our products ran"
    assert unlike(ours, floats) <= 1.1 * unlike(ggml, floats)


def test_mode_off_is_stock(default_model, products):
    _, made = read(default_model, "off", True)
    assert made == [0] * len(N_TOKENS)


def test_other_types_of_weights_are_left_to_ggml(synthetic, products):
    _, made = read(synthetic("llama"), "exact", True)
    assert made == [0] * len(N_TOKENS)
