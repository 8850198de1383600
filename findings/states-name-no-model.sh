#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): a saved sequence is taken by any model with rows of the same size, and by a context with
# another RoPE base, without a complaint; what follows is computed from keys of the other model. Keep beside a state what it was made of.
# Seen:  taken, goes on alike: the same model (True, True); another model (True, False); another RoPE base (True, False)
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36 gguf==0.19.0
seen - <<'PY'
import llama_cpp as L
from seen import check
from stock import context, decode, load, state
from tiny import write

tokens, models = list(range(260, 300)), [load(write(f"{seed}.gguf", "gemma2", 2, seed=seed)) for seed in (0, 1)]
ctx = context(models[0])
decode(ctx, tokens)
saved = state(ctx)
others = {"the same model": context(models[0]), "another model": context(models[1]), "another RoPE base": context(models[0], rope_freq_base=1e6)}
for what, other in others.items():
    taken = L.llama_state_seq_set_data(other, saved, len(saved), 0) == len(saved)
    same = bool((decode(other, [300], len(tokens)) == decode(ctx, [300], len(tokens))).all())
    L.llama_memory_seq_rm(L.llama_get_memory(ctx), 0, len(tokens), -1)
    check(f"{what}: taken; goes on alike", (taken, same), (True, what == "the same model"))
PY
