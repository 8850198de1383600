"""Several tokens meet quantised weights in our kernel: it is as close to products in floats as ggml's, and stock llama.cpp stays stock."""

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

import llama_cpp

N_TOKENS = (1, 2, 3, 4, 5, 17, 130)
MIXTURES = {"Q4_0": "q4_0", "Q4_1": "q4_1", "Q5_0": "q5_0", "Q5_1": "q5_1", "Q8_0": "q8_0", "Q4_K": "q4_k_m", "Q5_K": "q5_k_m", "Q6_K": "q6_k",
            "IQ4_NL": "iq4_nl", "IQ4_XS": "iq4_xs", "MXFP4": "mxfp4_moe"}
"""By type, a mixture whose main type it is."""


@pytest.fixture
def products() -> Iterator[None]:
    yield
    testing.use_products(True)


@pytest.fixture(scope="module")
def written(synthetic, tmp_path_factory) -> Callable[..., Path]:
    """`written(mixture)`: a small model whose matrices all have its main type."""
    source = synthetic("llama", n_embd=512, n_ff=768, n_layer=2, dtype="f16")
    folder = tmp_path_factory.mktemp("types")

    def write(mixture: str) -> Path:
        target = folder / f"{mixture}.gguf"
        if not target.exists():
            quantise(source, target, mixture, pure=True)
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
    before = testing.use_products(ours)
    logits, made = [], []
    with attached(path, KvOptions(mode=mode), n_seq=1, model_params=loading) as (context, _):
        position = 0
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


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("repacked", [True, False])
def test_products_are_as_exact_as_ggmls(written, products, name: str, repacked: bool):
    """For matrices that ggml repacks where it loads them, and for those as they are in the file."""
    layout = weight_types.layouts()[name]
    if repacked and layout is None:
        pytest.skip("ggml has no layout of its own for it here")
    path = written(MIXTURES[name])
    ours, made = read(path, "exact", True, use_extra_bufts=repacked)
    ggml, none = read(path, "exact", False, use_extra_bufts=repacked)
    serves = weight_types.multiplied_by_us(name, layout if repacked else None)
    assert made == [0] + [2 * 7 + 1 if serves else 0] * (len(N_TOKENS) - 1), "seven products a layer, and the logits; one token is left to ggml"
    assert none == [0] * len(N_TOKENS)
    floats, _ = read(in_floats(path), "exact", False)
    assert unlike(ours, floats) <= 1.1 * unlike(ggml, floats)


def test_mode_off_is_stock(default_model, products):
    _, made = read(default_model, "off", True)
    assert made == [0] * len(N_TOKENS)


def test_other_types_of_weights_are_left_to_ggml(synthetic, products):
    _, made = read(synthetic("llama"), "exact", True)
    assert made == [0] * len(N_TOKENS)
