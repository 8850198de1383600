#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): a context of a model that was loaded with no_alloc tells the memory that it would take. For minimax-01 in
# four slots it tells less than is allocated: its work buffers are largest for one sequence, are reserved last for that, and only the first counts there.
# Seen:  MiB simulated and allocated: 1 slots (8.65, 8.65); 4 slots (7.02, 8.65)
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36 gguf==0.19.0
seen - <<'PY'
import re

import gguf
import numpy as np
from seen import check
from stock import context, load, said

import llama_cpp as L

N, N_FF, N_VOCAB = 256, 384, 128
w = gguf.GGUFWriter("tiny.gguf", "minimax-01")
for key, value in dict(block_count=2, context_length=1024, embedding_length=N, feed_forward_length=N_FF, full_attention_interval=2, expert_count=2,
                       expert_used_count=2, expert_feed_forward_length=N_FF).items():
    w.add_uint32(f"minimax-01.{key}", value)
w.add_head_count(2)
w.add_head_count_kv(2)
w.add_float32("minimax-01.residual_scale", 3.5)
w.add_layer_norm_rms_eps(1e-5)
w.add_tokenizer_model("no_vocab")
w.add_uint32("minimax-01.vocab_size", N_VOCAB)


def add(name: str, *shape: int) -> None:
    w.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))


for name in ("token_embd", "output"):
    add(name, N_VOCAB, N)
add("output_norm", N)
for layer, names in enumerate(({"attn_norm_2": (N,), "attn_qkv": (3 * N, N), "attn_gate": (N, N)}, {f"attn_{name}": (N, N) for name in "qkv"})):
    experts = {"ffn_gate_exps": (2, N_FF, N), "ffn_up_exps": (2, N_FF, N), "ffn_down_exps": (2, N, N_FF)}
    for name, shape in (names | experts | {"attn_norm": (N,), "ffn_norm": (N,), "attn_output": (N, N), "ffn_gate_inp": (2, N)}).items():
        add(f"blk.{layer}.{name}", *shape)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()


def mib(n_seq: int, **settings: int) -> float:
    said.clear()
    L.llama_free(context(load("tiny.gguf", **settings), n_ctx=1024 * n_seq, n_seq_max=n_seq, n_ubatch=512))
    return float(re.search(r"compute buffer size = +([\d.]+) MiB", "".join(said))[1])


for n_seq, expected in ((1, (8.65, 8.65)), (4, (7.02, 8.65))):
    check(f"{n_seq} slots, MiB simulated and allocated", (mib(n_seq, no_alloc=True, load_mode=L.LLAMA_LOAD_MODE_NONE), mib(n_seq)), expected)
PY
