"""Tiny GGUF models with random weights that llama.cpp loads, for tests and benchmarks.

The same path, `SyntheticShape` and seed give the same bytes. Weights are scaled so that attention is far from uniform and the best token is
far from the second: logits then show a wrong kernel.
"""

import inspect
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from msgspec.structs import replace

from edgekv.models.synth_file import CONTROL, NORMAL, SyntheticFile, SyntheticShape


def llama(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Plain attention in every layer."""
    return _llama(_decoder(path, "llama", shape, seed))


def longrope(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Plain attention; contexts longer than a quarter of the trained one have other rotary factors."""
    m = _decoder(path, "llama", shape, seed)
    m.gguf.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    m.gguf.add_rope_scaling_orig_ctx_len(shape.n_ctx_train // 4)
    for name, most in (("long", 8.0), ("short", 1.5)):
        m.tensor(f"rope_factors_{name}.weight", np.linspace(1.0, most, shape.head_dim // 2), "f32")
    return _llama(m)


def _llama(m: SyntheticFile, n_head_kv: list[int] | None = None) -> Path:
    for il in range(m.shape.n_layer):
        block = f"blk.{il}"
        m.norm(f"{block}.attn_norm", m.shape.n_embd)
        m.qkv(block, n_head_kv=n_head_kv[il] if n_head_kv else None)
        m.norm(f"{block}.ffn_norm", m.shape.n_embd)
        m.ffn(block)
    return m.finish()


def deci(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Plain attention; odd layers have a KV head for each query head."""
    n_head_kv = [shape.n_head if il % 2 else shape.n_head_kv for il in range(shape.n_layer)]
    return _llama(_decoder(path, "deci", shape, seed, n_head_kv=n_head_kv), n_head_kv)


def qwen3(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Queries and keys are normalised per head before RoPE."""
    m = _decoder(path, "qwen3", shape, seed)
    for il in range(shape.n_layer):
        block = f"blk.{il}"
        m.norm(f"{block}.attn_norm", shape.n_embd)
        m.qkv(block)
        m.norm(f"{block}.attn_q_norm", shape.head_dim)
        m.norm(f"{block}.attn_k_norm", shape.head_dim)
        m.norm(f"{block}.ffn_norm", shape.n_embd)
        m.ffn(block)
    return m.finish()


def gemma2(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Soft-capped attention logits; even layers see a sliding window, odd ones everything (two caches, iSWA)."""
    m = _decoder(path, "gemma2", replace(shape, attn_gain=2 * shape.attn_gain), seed, output=False)
    m.gguf.add_sliding_window(shape.sliding_window)
    m.gguf.add_attn_logit_softcapping(shape.attn_softcap)
    m.gguf.add_final_logit_softcapping(30.0)
    for il in range(shape.n_layer):
        block = f"blk.{il}"
        m.norm(f"{block}.attn_norm", shape.n_embd)
        m.qkv(block)
        # The head is tied to the embedding: without the gain each token would predict itself.
        m.norm(f"{block}.post_attention_norm", shape.n_embd, gain=8.0)
        m.norm(f"{block}.ffn_norm", shape.n_embd)
        m.ffn(block)
        m.norm(f"{block}.post_ffw_norm", shape.n_embd, gain=8.0)
    return m.finish()


def gpt_oss(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Attention sinks (each head has a logit that takes weight and adds nothing), iSWA, two experts of which one is used."""
    m = _decoder(path, "gpt-oss", shape, seed)
    m.gguf.add_sliding_window(shape.sliding_window)
    m.gguf.add_expert_count(2)
    m.gguf.add_expert_used_count(1)
    m.gguf.add_expert_feed_forward_length(shape.n_ff)
    for il in range(shape.n_layer):
        block = f"blk.{il}"
        m.norm(f"{block}.attn_norm", shape.n_embd)
        m.qkv(block, bias=True)
        m.vector(f"{block}.attn_output.bias", shape.n_embd)
        m.vector(f"{block}.attn_sinks.weight", shape.n_head, gain=2.0)
        m.norm(f"{block}.post_attention_norm", shape.n_embd)
        m.matrix(f"{block}.ffn_gate_inp.weight", 2, shape.n_embd, dtype="f32")
        m.vector(f"{block}.ffn_gate_inp.bias", 2)
        for part, n_out, n_in in (("gate", shape.n_ff, shape.n_embd), ("up", shape.n_ff, shape.n_embd),
                                  ("down", shape.n_embd, shape.n_ff)):
            name = f"{block}.ffn_{part}_exps"
            m.tensor(f"{name}.weight", m.normal(name, 2, n_out, n_in) / np.sqrt(n_in), shape.dtype)
            m.vector(f"{name}.bias", 2, n_out)
    return m.finish()


def deepseek2(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Compressed K and V (MLA): a token has one latent row for all heads, and no V. `head_dim` is an expanded head's."""
    return _compressed(SyntheticFile(path, "deepseek2", shape, seed))


def deepseek32(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Compressed K and V, and in each layer an index that lists the cells that a token attends (trained selection, DSA)."""
    m, s = SyntheticFile(path, "deepseek32", shape, seed), shape
    m.gguf.add_indexer_head_count(s.n_index_head)
    m.gguf.add_indexer_key_length(s.head_dim)
    m.gguf.add_indexer_top_k(s.n_top_k)
    m.gguf.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    for il in range(s.n_layer):
        block = f"blk.{il}.indexer"
        m.matrix(f"{block}.attn_q_b.weight", s.n_index_head * s.head_dim, s.n_embd // 2)
        m.matrix(f"{block}.attn_k.weight", s.head_dim, s.n_embd)
        m.norm(f"{block}.k_norm", s.head_dim, bias=True)
        m.matrix(f"{block}.proj.weight", s.n_index_head, s.n_embd)
    return _compressed(m)


def _compressed(m: SyntheticFile) -> Path:
    s = m.shape
    n_rope, n_latent, n_q = s.n_turned or s.head_dim // 2, s.n_latent or 2 * s.head_dim, s.n_embd // 2
    m.gguf.add_head_count(s.n_head)
    m.gguf.add_head_count_kv(1)
    m.gguf.add_key_length(n_latent + n_rope)
    m.gguf.add_value_length(n_latent)
    m.gguf.add_key_length_mla(s.head_dim + n_rope)
    m.gguf.add_value_length_mla(s.head_dim)
    m.gguf.add_q_lora_rank(n_q)
    m.gguf.add_kv_lora_rank(n_latent)
    m.gguf.add_layer_norm_rms_eps(1e-5)
    m.gguf.add_rope_dimension_count(n_rope)
    m.gguf.add_rope_freq_base(s.rope_base)
    m.gguf.add_leading_dense_block_count(s.n_layer)
    m.gguf.add_expert_feed_forward_length(s.n_ff)
    m.gguf.add_expert_shared_count(1)
    m.text_and_ends()
    for il in range(s.n_layer):
        block = f"blk.{il}"
        m.norm(f"{block}.attn_norm", s.n_embd)
        m.matrix(f"{block}.attn_q_a.weight", n_q, s.n_embd)
        m.norm(f"{block}.attn_q_a_norm", n_q)
        m.matrix(f"{block}.attn_q_b.weight", s.n_head * (s.head_dim + n_rope), n_q, s.attn_gain)
        m.matrix(f"{block}.attn_kv_a_mqa.weight", n_latent + n_rope, s.n_embd)
        m.norm(f"{block}.attn_kv_a_norm", n_latent)
        for part, n_out, n_in in (("k", n_latent, s.head_dim), ("v", s.head_dim, n_latent)):
            name = f"{block}.attn_{part}_b.weight"
            m.tensor(name, m.normal(name, s.n_head, n_out, n_in) / np.sqrt(n_in), s.dtype)
        m.matrix(f"{block}.attn_output.weight", s.n_embd, s.n_head * s.head_dim)
        m.norm(f"{block}.ffn_norm", s.n_embd)
        m.ffn(block)
    return m.finish()


def mamba(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Recurrent: no attention and no KV cache."""
    m = SyntheticFile(path, "mamba", shape, seed)
    inner, state, rank, kernel = 2 * shape.n_embd, 8, 8, 4
    m.gguf.add_head_count(0)
    m.gguf.add_layer_norm_rms_eps(1e-5)
    m.gguf.add_ssm_conv_kernel(kernel)
    m.gguf.add_ssm_inner_size(inner)
    m.gguf.add_ssm_state_size(state)
    m.gguf.add_ssm_time_step_rank(rank)
    m.text_and_ends()
    for il in range(shape.n_layer):
        block = f"blk.{il}"
        m.norm(f"{block}.attn_norm", shape.n_embd)
        m.matrix(f"{block}.ssm_in.weight", 2 * inner, shape.n_embd)
        m.vector(f"{block}.ssm_conv1d.weight", inner, kernel, gain=0.5)
        m.vector(f"{block}.ssm_conv1d.bias", inner)
        m.matrix(f"{block}.ssm_x.weight", rank + 2 * state, inner)
        m.matrix(f"{block}.ssm_dt.weight", inner, rank, dtype="f32")
        m.vector(f"{block}.ssm_dt.bias", inner)
        m.tensor(f"{block}.ssm_a", -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1)), "f32")
        m.vector(f"{block}.ssm_d", inner, gain=1.0)
        m.matrix(f"{block}.ssm_out.weight", shape.n_embd, inner)
    return m.finish()


def lfm2(path: Path, shape: SyntheticShape = SyntheticShape(n_layer=4, n_head=2, n_head_kv=1), seed: int = 0) -> Path:
    """Hybrid: even layers are short convolutions (no KV), odd ones attend. Needs n_head * head_dim = n_embd."""
    attends = [il % 2 == 1 for il in range(shape.n_layer)]
    m = _decoder(path, "lfm2", shape, seed, n_head_kv=[shape.n_head_kv * a for a in attends], norm="token_embd_norm")
    m.gguf.add_shortconv_l_cache(3)
    for il in range(shape.n_layer):
        block = f"blk.{il}"
        m.norm(f"{block}.attn_norm", shape.n_embd)
        if attends[il]:
            m.qkv(block)
            m.norm(f"{block}.attn_q_norm", shape.head_dim)
            m.norm(f"{block}.attn_k_norm", shape.head_dim)
        else:
            m.vector(f"{block}.shortconv.conv.weight", shape.n_embd, 3, gain=0.5)
            m.matrix(f"{block}.shortconv.in_proj.weight", 3 * shape.n_embd, shape.n_embd)
            m.matrix(f"{block}.shortconv.out_proj.weight", shape.n_embd, shape.n_embd)
        m.norm(f"{block}.ffn_norm", shape.n_embd)
        m.ffn(block)
    return m.finish()


def bert(path: Path, shape: SyntheticShape = SyntheticShape(n_head=2, n_head_kv=2, n_ctx_train=512), seed: int = 0) -> Path:
    """An embedding model: attends in both directions, makes vectors, cannot chat. Needs n_head * head_dim = n_embd."""
    m = SyntheticFile(path, "bert", shape, seed)
    m.gguf.add_head_count(shape.n_head)
    m.gguf.add_layer_norm_eps(1e-12)
    m.gguf.add_causal_attention(False)
    m.gguf.add_pooling_type(gguf.PoolingType.MEAN)
    printable = [chr(c) for c in range(33, 127)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"▁{c}" for c in printable), *printable]
    words += [f"▁word{i}" for i in range(shape.n_vocab - len(words))]
    m.gguf.add_tokenizer_model("bert")
    m.gguf.add_tokenizer_pre("default")
    m.gguf.add_token_list(words)
    m.gguf.add_token_types([CONTROL] * 5 + [NORMAL] * (len(words) - 5))
    m.gguf.add_token_type_count(2)
    for name, token in (("bos", 2), ("eos", 3), ("unk", 1), ("sep", 3), ("pad", 0), ("mask", 4)):
        getattr(m.gguf, f"add_{name}_token_id")(token)
    m.matrix("token_embd.weight", shape.n_vocab, shape.n_embd)
    m.matrix("token_types.weight", 2, shape.n_embd, dtype="f32")
    m.matrix("position_embd.weight", shape.n_ctx_train, shape.n_embd, dtype="f32")
    m.norm("token_embd_norm", shape.n_embd, bias=True)
    for il in range(shape.n_layer):
        block = f"blk.{il}"
        m.qkv(block, bias=True)
        m.norm(f"{block}.attn_output_norm", shape.n_embd, bias=True)
        m.matrix(f"{block}.ffn_up.weight", shape.n_ff, shape.n_embd)
        m.matrix(f"{block}.ffn_down.weight", shape.n_embd, shape.n_ff)
        m.norm(f"{block}.layer_output_norm", shape.n_embd, bias=True)
    return m.finish()


def vocabulary(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """A tokenizer and sizes, but no weights."""
    m = SyntheticFile(path, "llama", shape, seed)
    m.attention()
    m.text_tokenizer()
    return m.finish()


def _decoder(
    path: Path, arch: str, shape: SyntheticShape, seed: int, output: bool = True, n_head_kv: list[int] | None = None,
    norm: str = "output_norm",
) -> SyntheticFile:
    """The common parts of attending architectures: metadata, tokenizer, embeddings, last norm, head (tied where `output` is off)."""
    m = SyntheticFile(path, arch, shape, seed)
    m.attention(n_head_kv)
    m.text_and_ends(output, norm)
    return m


KINDS: dict[str, Callable[..., Path]] = {
    "llama": llama, "longrope": longrope, "deci": deci, "qwen3": qwen3, "gemma2": gemma2, "gpt-oss": gpt_oss, "lfm2": lfm2, "mamba": mamba,
    "deepseek2": deepseek2, "deepseek32": deepseek32, "bert": bert, "vocabulary": vocabulary,
}
"""Every kind by name."""

GENERATES_TEXT = ("llama", "deci", "qwen3", "gemma2", "gpt-oss", "lfm2", "mamba")


def write(kind: str, path: Path, seed: int = 0, **sizes: object) -> Path:
    """Write a model of one of the `KINDS`. sizes: fields of `SyntheticShape` that differ from the kind's default."""
    function = KINDS[kind]
    default = inspect.signature(function).parameters["shape"].default
    return function(path, replace(default, **sizes), seed)
