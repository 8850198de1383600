#!/usr/bin/env bash
# llama-cpp-python 0.3.36: what is found in a LlamaDiskCache is removed from it: the second look for the same prompt raises KeyError. And of
# capacity_bytes (2 GiB if not given) only the first GiB counts, because the package below it has a limit of its own.
# Seen:  LlamaRAMCache, looked up twice: [3, 3]; LlamaDiskCache: [3, 'KeyError']; its capacity, and the limit below it, in MiB: [2048,
#        1024]
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
seen - <<'PY' 2>&1 | grep -v LlamaDiskCache.__setitem__
import numpy as np
from llama_cpp import LlamaDiskCache, LlamaRAMCache
from llama_cpp.llama import LlamaState
from seen import check, outcome

state = LlamaState(input_ids=np.zeros(3, np.intc), scores=np.zeros((0, 4), np.single), n_tokens=3, llama_state=b"abc", llama_state_size=3, seed=1)
for kind, second in ((LlamaRAMCache, 3), (LlamaDiskCache, "KeyError")):
    cache = kind(**({"cache_dir": "kept"} if kind is LlamaDiskCache else {}), capacity_bytes=2 << 30)
    cache[(1, 2, 3)] = state
    check(f"{kind.__name__}, looked up twice", [outcome(lambda: cache[(1, 2, 3, 4)].n_tokens) for _ in range(2)], [3, second])
check("its capacity, and the limit of the cache below it, in MiB", [cache.capacity_bytes >> 20, cache.cache.size_limit >> 20], [2048, 1024])
PY
