"""Pages move while tokens are decoded and cells change under them: after each kind of change every sketch and every slot is
right, and the predictions are those of a context in which nothing ever moved."""

import ctypes

import numpy as np
import pytest
from support.decoding import kld
from support.opening import check, logits_behind, open_model

from edgekv.measure.decoder import Decoder

import llama_cpp

MIB = 1 << 20


def reading(llama, n: int, seed: int = 0) -> tuple[Decoder, np.ndarray]:
    tokens = np.random.default_rng(seed).integers(260, 350, n + 2000).tolist()
    decoder = Decoder(llama)
    for first in range(0, n, 2048):
        decoder.decode(tokens[first : min(n, first + 2048)])
    return decoder, tokens[n:]


@pytest.fixture
def model(synthetic, device):
    return synthetic("llama", n_ctx_train=16384, **({"n_layer": 4, "head_dim": 128} if device == "cuda" else {}))


@pytest.mark.parametrize("mode", ["exact", "sparse"])
def test_under_load(model, device, mode):
    n, n_rounds = (6000, 24) if device == "cuda" else (1100, 3)
    llama = open_model(model, device, mode, 6 * MIB, n_ctx=8192)
    decoder, tokens = reading(llama, n)
    random = np.random.default_rng(1)
    for turn in range(n_rounds):
        for _ in range(16):
            decoder.decode([tokens.pop()])
        check(llama.kv)
        what = turn % 3
        if what == 0:  # cut back, into pages that have slots
            decoder.rewind(decoder.position - int(random.integers(1, 200)))
        elif what == 1:  # a prompt in between
            decoder.decode([tokens.pop() for _ in range(150)])
        else:  # the context moves up over a hole
            first = int(random.integers(64, decoder.position // 2))
            llama_cpp.llama_memory_seq_rm(decoder._memory, 0, first, first + 48)
            llama_cpp.llama_memory_seq_add(decoder._memory, 0, first + 48, -1, -48)
            decoder.position -= 48
        decoder.decode([tokens.pop()])
        check(llama.kv)
        assert np.isfinite(decoder.logits()).all()
    tiers = llama.kv.tiers()
    print(f"{mode}: {tiers.n_promotions} promotions, {tiers.n_demotions} demotions, {tiers.n_invalidated} invalidated, "
          f"{tiers.n_slots} slots")
    assert tiers.n_promotions > 0 or mode == "exact" and tiers.n_slots == 0
    decoder.close()
    llama.close()


def test_moving_changes_no_prediction(model, device):
    """Mode exact with a small arena predicts as with everything resident."""
    n = 3000 if device == "cuda" else 1000
    found = {}
    for vram in (None, 6 * MIB):
        llama = open_model(model, device, "exact", vram, n_ctx=4096)
        decoder, tokens = reading(llama, n)
        found[vram] = logits_behind(decoder, tokens[:48])
        decoder.close()
        llama.close()
    assert kld(found[None], found[6 * MIB]).max() < 1e-4


def test_state_moves_between_budgets(model, device):
    """A cache that one context saved goes on in another with a smaller arena."""
    n = 2000 if device == "cuda" else 800
    one = open_model(model, device, "exact", None, n_ctx=4096)
    decoder, tokens = reading(one, n)
    size = llama_cpp.llama_state_seq_get_size(one.ctx, 0)
    buffer = (ctypes.c_uint8 * size)()
    assert llama_cpp.llama_state_seq_get_data(one.ctx, buffer, size, 0) == size
    decoder.decode([tokens[0]])
    expected = decoder.logits()
    decoder.close()
    one.close()
    other = open_model(model, device, "exact", 6 * MIB, n_ctx=4096)
    decoder = Decoder(other)
    assert llama_cpp.llama_state_seq_set_data(other.ctx, buffer, size, 0) == size
    decoder.position = n
    decoder.decode([tokens[0]])
    check(other.kv)
    assert kld(expected[None], decoder.logits()[None]).max() < 1e-3
    decoder.close()
    other.close()
