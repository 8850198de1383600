#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): yarn_attn_factor of a context (--yarn-attn-factor) is overwritten by a factor that is
# computed where YaRN is in use, and counts only where it is not.
# Seen:  largest difference between factors of 1 and 3 with YaRN: 0.0; without: 2.7
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36 gguf==0.19.0
seen - <<'PY'
from seen import check
from stock import context, decode, load
from tiny import write

yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 1024}
for what, keys, same in (("with YaRN", yarn, True), ("without", {}, False)):
    model = load(write("a.gguf", "gemma2", 2, **keys))
    one, three = (decode(context(model, flash_attn_type=0, yarn_attn_factor=factor), list(range(260, 300))) for factor in (1.0, 3.0))
    print("largest difference", abs(one - three).max())
    check(f"{what}, factors of 1 and 3 give the same logits", bool((one == three).all()), same)
PY
