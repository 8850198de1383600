"""Prompts on a device whose layers are staged in pieces of some KV heads, on the emulated device."""

import pytest
from support.decoding import kld
from support.planes import SINGLE, logits_of, open_model, plane_of

pytestmark = pytest.mark.usefixtures("emulator", "single_precision")

N_CTX = 65536
PIECE = 64 << 20


@pytest.mark.parametrize(("kind", "shape", "types", "mode"), [
    ("llama", {"n_head": 8, "n_head_kv": 4}, {}, "exact"), ("llama", {"n_head": 3, "n_head_kv": 3}, {}, "sparse"),
    ("llama", {"n_head": 8, "n_head_kv": 8}, {"type_k": "q8_0", "type_v": "q8_0"}, "exact"),
    ("gemma2", {"n_head": 4, "n_head_kv": 4}, {}, "exact"), ("gpt-oss", {"n_head": 8, "n_head_kv": 4}, {}, "sparse")],
    ids=["two heads each", "three heads", "q8_0", "softcap", "sinks"])
def test_the_logits_are_those_of_whole_layers(synthetic, kind, shape, types, mode):
    """A prompt of two ubatches, then single tokens, and steps of several. Where the context is short, a layer is one piece."""
    path = synthetic(kind, dtype="f32", head_dim=128, n_ctx_train=N_CTX, **shape)
    options = {"mode": mode, **types} | ({"sample_budget": 1e9, "exact_tokens": 0} if mode == "sparse" else {})
    short = open_model(path, n_ctx=1024, **options)
    whole = logits_of(short, (1, 20, 1), n_prompt=300)
    llama = open_model(path, n_ctx=N_CTX, **options)
    served = next(layer.il for layer in llama.kv.layers if layer.index >= 0)
    layer = N_CTX * sum(rows.strides[1] for rows in (llama.kv.cells.keys(served), llama.kv.cells.values(served)))
    assert plane_of(llama).staging_bytes <= 2 * max(PIECE, layer // shape["n_head_kv"]) < 2 * layer
    assert kld(whole, logits_of(llama, (1, 20, 1), n_prompt=300)).max() <= SINGLE
