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
    m = _decoder(path, "llama", shape, seed)
    return m.layers(lambda block, il: m.qkv(block))


def longrope(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Plain attention; contexts longer than a quarter of the trained one have other rotary factors."""
    m = _decoder(path, "llama", shape, seed)
    m.say(rope_scaling_type=gguf.RopeScalingType.LONGROPE, rope_scaling_orig_ctx_len=shape.n_ctx_train // 4)
    for name, most in (("long", 8.0), ("short", 1.5)):
        m.tensor(f"rope_factors_{name}.weight", np.linspace(1.0, most, shape.head_dim // 2), "f32")
    return m.layers(lambda block, il: m.qkv(block))


def deci(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Plain attention; odd layers have a KV head for each query head."""
    n_head_kv = [shape.n_head if il % 2 else shape.n_head_kv for il in range(shape.n_layer)]
    m = _decoder(path, "deci", shape, seed, n_head_kv=n_head_kv)
    return m.layers(lambda block, il: m.qkv(block, n_head_kv=n_head_kv[il]))


def qwen3(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Queries and keys are normalised per head before RoPE."""
    m = _decoder(path, "qwen3", shape, seed)
    return m.layers(lambda block, il: m.qkv(block, normed=True))


def gemma2(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Soft-capped attention logits; even layers see a sliding window, odd ones everything (two caches, iSWA)."""
    m = _decoder(path, "gemma2", replace(shape, attn_gain=2 * shape.attn_gain), seed, output=False)
    m.say(sliding_window=shape.sliding_window, attn_logit_softcapping=shape.attn_softcap, final_logit_softcapping=30.0)

    def attend(block: str, il: int) -> None:
        m.qkv(block)
        # The head is tied to the embedding: without the gain each token would predict itself.
        m.norm(f"{block}.post_attention_norm", shape.n_embd, gain=8.0)
        m.norm(f"{block}.post_ffw_norm", shape.n_embd, gain=8.0)

    return m.layers(attend)


def gpt_oss(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Attention sinks (each head has a logit that takes weight and adds nothing), iSWA, two experts of which one is used."""
    m = _decoder(path, "gpt-oss", shape, seed)
    m.say(sliding_window=shape.sliding_window, expert_count=2, expert_used_count=1, expert_feed_forward_length=shape.n_ff)

    def attend(block: str, il: int) -> None:
        m.qkv(block, bias=True)
        m.vector(f"{block}.attn_output.bias", shape.n_embd)
        m.vector(f"{block}.attn_sinks.weight", shape.n_head, gain=2.0)

    def feed(block: str) -> None:
        m.matrix(f"{block}.ffn_gate_inp.weight", 2, shape.n_embd, dtype="f32")
        m.vector(f"{block}.ffn_gate_inp.bias", 2)
        for part, n_out, n_in in (("gate", shape.n_ff, shape.n_embd), ("up", shape.n_ff, shape.n_embd),
                                  ("down", shape.n_embd, shape.n_ff)):
            name = f"{block}.ffn_{part}_exps"
            m.tensor(f"{name}.weight", m.normal(name, 2, n_out, n_in) / np.sqrt(n_in), shape.dtype)
            m.vector(f"{name}.bias", 2, n_out)

    return m.layers(attend, feed, "post_attention_norm")


def deepseek2(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Compressed K and V (MLA): a token has one latent row for all heads, and no V. `head_dim` is an expanded head's."""
    return _compressed(SyntheticFile(path, "deepseek2", shape, seed))


def deepseek32(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Compressed K and V, and in each layer an index that lists the cells that a token attends (trained selection, DSA)."""
    m, s = SyntheticFile(path, "deepseek32", shape, seed), shape
    m.say(indexer_head_count=s.n_index_head, indexer_key_length=s.head_dim, indexer_top_k=s.n_top_k, expert_gating_func=gguf.ExpertGatingFuncType.SIGMOID)
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
    m.say(head_count=s.n_head, head_count_kv=1, key_length=n_latent + n_rope, value_length=n_latent, key_length_mla=s.head_dim + n_rope,
          value_length_mla=s.head_dim, q_lora_rank=n_q, kv_lora_rank=n_latent, layer_norm_rms_eps=1e-5, rope_dimension_count=n_rope,
          rope_freq_base=s.rope_base, leading_dense_block_count=s.n_layer, expert_feed_forward_length=s.n_ff, expert_shared_count=1)
    m.text_and_ends()

    def attend(block: str, il: int) -> None:
        m.matrix(f"{block}.attn_q_a.weight", n_q, s.n_embd)
        m.norm(f"{block}.attn_q_a_norm", n_q)
        m.matrix(f"{block}.attn_q_b.weight", s.n_head * (s.head_dim + n_rope), n_q, s.attn_gain)
        m.matrix(f"{block}.attn_kv_a_mqa.weight", n_latent + n_rope, s.n_embd)
        m.norm(f"{block}.attn_kv_a_norm", n_latent)
        for part, n_out, n_in in (("k", n_latent, s.head_dim), ("v", s.head_dim, n_latent)):
            name = f"{block}.attn_{part}_b.weight"
            m.tensor(name, m.normal(name, s.n_head, n_out, n_in) / np.sqrt(n_in), s.dtype)
        m.matrix(f"{block}.attn_output.weight", s.n_embd, s.n_head * s.head_dim)

    return m.layers(attend)


def mamba(path: Path, shape: SyntheticShape = SyntheticShape(), seed: int = 0) -> Path:
    """Recurrent: no attention and no KV cache."""
    m = SyntheticFile(path, "mamba", shape, seed)
    inner, state, rank, kernel = 2 * shape.n_embd, 8, 8, 4
    m.say(head_count=0, layer_norm_rms_eps=1e-5, ssm_conv_kernel=kernel, ssm_inner_size=inner, ssm_state_size=state, ssm_time_step_rank=rank)
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
    m.say(shortconv_l_cache=3)

    def attend(block: str, il: int) -> None:
        if attends[il]:
            m.qkv(block, normed=True)
        else:
            m.vector(f"{block}.shortconv.conv.weight", shape.n_embd, 3, gain=0.5)
            m.matrix(f"{block}.shortconv.in_proj.weight", 3 * shape.n_embd, shape.n_embd)
            m.matrix(f"{block}.shortconv.out_proj.weight", shape.n_embd, shape.n_embd)

    return m.layers(attend)


def bert(path: Path, shape: SyntheticShape = SyntheticShape(n_head=2, n_head_kv=2, n_ctx_train=512), seed: int = 0) -> Path:
    """An embedding model: attends in both directions, makes vectors, cannot chat. Needs n_head * head_dim = n_embd."""
    m = SyntheticFile(path, "bert", shape, seed)
    printable = [chr(c) for c in range(33, 127)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"▁{c}" for c in printable), *printable]
    words += [f"▁word{i}" for i in range(shape.n_vocab - len(words))]
    m.say(head_count=shape.n_head, layer_norm_eps=1e-12, causal_attention=False, pooling_type=gguf.PoolingType.MEAN, tokenizer_model="bert",
          tokenizer_pre="default", token_list=words, token_types=[CONTROL] * 5 + [NORMAL] * (len(words) - 5), token_type_count=2,
          bos_token_id=2, eos_token_id=3, unk_token_id=1, sep_token_id=3, pad_token_id=0, mask_token_id=4)
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
