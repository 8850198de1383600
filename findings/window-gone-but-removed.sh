#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): llama_memory_seq_rm() back to a position whose window has been overwritten returns true,
# and what follows is computed from what is left, with other logits and no error. llama_memory_seq_pos_min() tells it: the window of the
# position must begin there or later, and -1 is nothing.
# Seen:  seq_rm from 200 of 300: True, first position left 44, largest difference 7.2e-07; of 1600: True, -1, 2.6
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36 gguf==0.19.0
seen - <<'PY'
import llama_cpp as L
from seen import check
from stock import context, decode, load
from tiny import write

model = load(write("a.gguf", "gemma2", 4, attention__sliding_window=64))
tokens = [260 + i * 7 % 120 for i in range(1600)]


def logits(back_from: int):
    """Of token 200, after `back_from` tokens had been read."""
    ctx = context(model, n_batch=100, n_ubatch=100, swa_full=False, flash_attn_type=0, type_k=0, type_v=0)
    for at in range(0, back_from, 100):
        decode(ctx, tokens[at:at + 100], at)
    memory = L.llama_get_memory(ctx)
    check(f"seq_rm from 200 of {back_from}", L.llama_memory_seq_rm(memory, 0, 200, -1), True)
    print("first position that is left", L.llama_memory_seq_pos_min(memory, 0))
    return decode(ctx, tokens[200:201], 200)


never = logits(200)
for back_from, same in ((300, True), (1600, False)):
    difference = abs(logits(back_from) - never).max()
    print(f"largest difference {difference:.2g}")
    check(f"back from {back_from}: the logits are the same", bool(difference < 1e-4), same)
PY
