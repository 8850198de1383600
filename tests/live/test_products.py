"""Several tokens meet Q4_1 weights in our kernel: the numbers are those of ggml's, and stock llama.cpp stays stock."""

from collections.abc import Iterator

import numpy as np
import pytest
from support.contexts import attached

from edgekv import _native
from edgekv._native import testing
from edgekv.config import KvOptions

pytestmark = pytest.mark.skipif(_native.info()["isa"] in ("portable", "amx"),
                                reason="ggml's own kernel serves here: there is none of ours, or ggml keeps weights in tiles of its own")

N_TOKENS = (1, 2, 3, 4, 5, 17, 130)


@pytest.fixture
def products() -> Iterator[None]:
    yield
    testing.use_products(True)


def read(path, mode: str, ours: bool) -> tuple[np.ndarray, list[int]]:
    """Logits of the last token of batches of N_TOKENS, float32 [batch, n_vocab], and the number of products that our kernel made for
    each."""
    before = testing.use_products(ours)
    logits, made = [], []
    with attached(path, KvOptions(mode=mode), n_seq=1) as (context, _):
        position = 0
        for n in N_TOKENS:
            tokens = np.random.default_rng(n).integers(260, 350, n)
            logits.append(context.decode(tokens, range(position, position + n), [0] * n)[-1])
            position += n
            after = testing.use_products(ours)
            made.append(after - before)
            before = after
    return np.array(logits), made


def test_products_are_those_of_ggml(default_model, products):
    ours, made = read(default_model, "exact", True)
    ggml, none = read(default_model, "exact", False)

    assert made[0] == 0, "one token is left to ggml"
    assert min(made[1:]) >= 30 * 7, "seven products a layer"
    assert none == [0] * len(N_TOKENS)
    # the same sums in the same order; a compiler may round a sum of products once or twice
    assert np.abs(ours - ggml).max() <= 0.02 * ggml.std()
    assert (ours.argmax(axis=1) == ggml.argmax(axis=1)).all()


def test_mode_off_is_stock(default_model, products):
    _, made = read(default_model, "off", True)
    assert made == [0] * len(N_TOKENS)


def test_other_types_of_weights_are_left_to_ggml(synthetic, products):
    _, made = read(synthetic("llama"), "exact", True)
    assert made == [0] * len(N_TOKENS)
