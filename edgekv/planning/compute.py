"""llama.cpp's work buffers: by a formula for a prompt's ubatch, which was fitted to the graphs that llama.cpp's allocator reserved for many shapes, and as
it reserves them."""

from edgekv.config import KvOptions
from edgekv.models.geometry import UBATCH_TOKENS, ModelFile
from edgekv.models.inspector import Asked, inspector
from edgekv.planning.fit import rounded

_F32, _F16 = 4, 2

CLOSE = frozenset({"llama", "deci", "qwen3", "qwen3moe", "gemma2", "gemma3", "lfm2"})
"""Architectures that the formula was compared with."""


def compute_bytes(model: ModelFile, n_ctx: int, n_slots: int, n_ubatch: int, unified: bool = False) -> tuple[int, bool]:
    """Bytes for ubatches of up to `n_ubatch` tokens in `n_slots` sequences of `n_ctx` tokens on the processor, and whether the formula was
    compared with this architecture. unified: the sequences share one cache.

    The widest point of such a graph is the feed-forward network: its two halves and their product, three times the residual stream, and what
    the queries left free. The masks of all cells lie beside it, in f16 as flash attention reads them, one for each cache, and the logits
    of one token of each slot.
    """
    shape, get = model.geometry, model.header.value
    arch = shape.architecture
    n_tokens = min(n_ubatch, n_slots * n_ctx)
    n_together = n_slots if unified else 1
    n_kv = rounded(n_together * n_ctx)
    masks = n_tokens * n_kv * _F16
    if any(shape.swa):
        masks += n_tokens * min(n_kv, rounded(n_together * shape.sliding_window + n_ubatch)) * _F16
    n_ff = get(f"{arch}.feed_forward_length", 0)
    widest = max(n_ff) if isinstance(n_ff, list) else int(n_ff)
    if n_used := int(get(f"{arch}.expert_used_count", 0) or 0):
        per_expert = int(get(f"{arch}.expert_feed_forward_length", widest))
        activations = 2 * n_used * (shape.n_embd + per_expert)
    else:
        rest = 0 if shape.recurrent_bytes else max(shape.n_embd, max(shape.n_head) * shape.head_dim_k)
        activations = 3 * widest + 3 * shape.n_embd + rest
    attending = (2 * max(shape.n_head) + 3 * max(shape.n_head_kv)) * shape.head_dim_k  # queries and keys before and after RoPE, values
    logits = _F32 * shape.n_vocab * n_slots
    return masks + n_tokens * _F32 * max(activations, attending) + logits, arch in CLOSE


def reserved_bytes(model: ModelFile, kv: KvOptions, n_ctx: int, n_slots: int, unified: bool) -> int:
    """Bytes that llama.cpp reserves on the processor for slots of `n_ctx` tokens each, which it says without allocating them. The header is enough.
    Raises ModelError."""
    asked = Asked(n_slots, unified, UBATCH_TOKENS, kv.cache.type_k.ggml_type, kv.cache.type_v.ggml_type)
    return inspector(model.geometry.path).context(rounded(n_ctx * (n_slots if unified else 1)), asked).compute_bytes
