"""Small GGUF files of random weights, and the caches that llama.cpp makes for them."""

import re
from typing import Any

import gguf
import numpy as np
from stock import context, load, said

import llama_cpp

N, N_VOCAB = 64, 384
"""Length of every vector but the vocabulary's: one head."""


def write(path: str, arch: str, n_layer: int, n_next: int = 0, name: str = "tiny", seed: int = 0, **keys: Any) -> str:
    """gemma2 or exaone4, by the names of llama.cpp's converter, with `n_next` more layers that predict further tokens, and `keys` of the architecture, where
    __ is a dot. Tokens 259 and 260 are the marks <|end|> and <|endoftext|>. Returns the path."""
    w, rng = gguf.GGUFWriter(path, arch), np.random.default_rng(seed)
    w.add_name(name)
    w.add_context_length(65536)
    w.add_embedding_length(N)
    w.add_block_count(n_layer + n_next)
    w.add_feed_forward_length(N)
    w.add_head_count(1)
    w.add_key_length(N)
    w.add_value_length(N)
    w.add_layer_norm_rms_eps(1e-5)
    for key, value in keys.items():
        kind = {list: "array", float: "float32", str: "string", int: "uint32"}[type(value)]
        getattr(w, f"add_{kind}")(f"{arch}.{key.replace('__', '.')}", value)
    w.add_tokenizer_model("llama")
    w.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "<|end|>", "<|endoftext|>", *(f"word{i}" for i in range(N_VOCAB - 261))])
    w.add_token_scores([0.0] * N_VOCAB)
    w.add_token_types([2, 3, 3] + [6] * 256 + [3, 3] + [1] * (N_VOCAB - 261))

    def add_weights(prefix: str, names: str, *shape: int) -> None:
        for name in names.split():
            w.add_tensor(f"{prefix}{name}.weight", np.float32(rng.standard_normal(shape) / 8) if len(shape) > 1 else np.ones(shape, np.float32))

    add_weights("", "token_embd", N_VOCAB, N)
    add_weights("", "output_norm", N)
    for i in range(n_layer + n_next):
        add_weights(f"blk.{i}.", "attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down", N, N)
        add_weights(f"blk.{i}.", "post_attention_norm post_ffw_norm " + ("attn_norm ffn_norm" if arch == "gemma2" else "attn_q_norm attn_k_norm"), N)
        if i >= n_layer:
            add_weights(f"blk.{i}.", "nextn.eh_proj", N, 2 * N)
            add_weights(f"blk.{i}.", "nextn.enorm nextn.hnorm nextn.shared_head_norm", N)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def caches(path: str) -> list[tuple[int, int]]:
    """(tokens, layers) of each cache of a context of 16,384 tokens, without those of no layer."""
    said.clear()
    llama_cpp.llama_free(context(load(path), n_ctx=16384, n_ubatch=512, swa_full=False))
    found = re.findall(r"llama_kv_cache: size = .*?\(\s*(\d+) cells,\s*(\d+) layers", "".join(said))
    return [(int(n_cells), int(n_layers)) for n_cells, n_layers in found if int(n_layers)]
