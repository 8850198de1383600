#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): a file's keys do not tell whether its layers have a sliding window. gemma2 without the key
# has one of 4,096; exaone4 with the key, and with a list of the layers that slide, has none unless it has 64 layers; a pattern of 0 means
# that all layers slide, not that none does. (A cache of a window has 512 tokens more, the batch.) Ask llama.cpp what it makes, as here.
# Seen:  (tokens, layers) of gemma2 with a window of 512: [(16384, 4), (1024, 4)]; no key: [(16384, 4), (4608, 4)]; pattern 0: [(1024, 8)];
#        exaone4 of 30 layers with 512, with a list: [(16384, 30)]; of 64: [(16384, 16), (1024, 48)]
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36 gguf==0.19.0
seen - <<'PY'
from seen import check
from tiny import caches, write

for what, arch, n_layer, keys, expected in (
        ("gemma2, window 512", "gemma2", 8, {"window": 512}, [(16384, 4), (1024, 4)]),
        ("gemma2, no key", "gemma2", 8, {}, [(16384, 4), (4608, 4)]),
        ("gemma2, window 512, pattern 0", "gemma2", 8, {"window": 512, "window_pattern": 0}, [(1024, 8)]),
        ("exaone4 of 30 layers, window 512", "exaone4", 30, {"window": 512}, [(16384, 30)]),
        ("the same with a list", "exaone4", 30, {"window": 512, "window_pattern": [True, True, True, False] * 7 + [True, True]}, [(16384, 30)]),
        ("exaone4 of 64 layers, window 512", "exaone4", 64, {"window": 512}, [(16384, 16), (1024, 48)])):
    path = write("a.gguf", arch, n_layer, **{f"attention__sliding_{key}": value for key, value in keys.items()})
    check(f"{what}: (tokens, layers)", caches(path), expected)
PY
