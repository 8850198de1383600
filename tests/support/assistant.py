"""A draft model that attends the cells of its target's cache (gemma4-assistant), with random weights; its target is a synthetic gemma2."""

import ctypes
from pathlib import Path

import gguf
import numpy as np
from support.adapters import finish
from support.contexts import Context

from edgekv.models.synth_file import add_text_tokenizer

ARCH, WIDTH, HEADS, FF, VOCAB = "gemma4-assistant", 64, 4, 96, 384


def write(path: Path, target_width: int = 128, head_dim: int = 64, n_head_kv: int = 2) -> Path:
    """The draft computes the first of three layers: it attends all tokens, in the rows that the target's last layer stored."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, ARCH)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_uint32(f"{ARCH}.embedding_length_out", target_width)
    writer.add_block_count(3)
    writer.add_uint32(f"{ARCH}.nextn_predict_layers", 1)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(n_head_kv)
    for which in ("key", "value"):
        for suffix in ("", "_swa"):
            writer.add_uint32(f"{ARCH}.attention.{which}_length{suffix}", head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_sliding_window(64)
    writer.add_array(f"{ARCH}.attention.sliding_window_pattern", [False, True, False])
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(VOCAB)
    add_text_tokenizer(writer, VOCAB)

    def add(name: str, *shape: int, dtype=np.float16) -> None:
        writer.add_tensor(f"{name}.weight", (rng.standard_normal(shape) * 0.1).astype(dtype))

    add("token_embd", VOCAB, WIDTH)
    add("output_norm", WIDTH, dtype=np.float32)
    add("nextn.pre_projection", WIDTH, 2 * target_width)
    add("nextn.post_projection", target_width, WIDTH)
    add("rope_freqs", head_dim // 2, dtype=np.float32)
    add("blk.0.attn_q", HEADS * head_dim, WIDTH)
    add("blk.0.attn_output", WIDTH, HEADS * head_dim)
    add("blk.0.attn_q_norm", head_dim, dtype=np.float32)
    for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
        add(f"blk.0.{name}", WIDTH, dtype=np.float32)
    add("blk.0.layer_output_scale", 1, dtype=np.float32)
    for name, shape in (("ffn_gate", (FF, WIDTH)), ("ffn_up", (FF, WIDTH)), ("ffn_down", (WIDTH, FF))):
        add(f"blk.0.{name}", *shape)
    return finish(writer, path)


def draft_of(target: Context, path: Path, **arguments) -> Context:
    """A context of the draft model over the target's cells."""
    return Context(path, ctx_other=ctypes.cast(target.ctx, ctypes.c_void_p).value, **arguments)
