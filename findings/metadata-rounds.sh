#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): llama_model_meta_val_str() and Llama.metadata give numbers with six digits behind the
# point: an epsilon of 1e-5 is "0.000010", one of 1e-7 is "0.000000"; and they leave arrays out, such as a head_count_kv by layer. Read such
# values from the file.
# Seen:  1e-05 in the file: 0.000010; 1e-07: 0.000000; 1.2345678: 1.234568; an array: -1
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36 gguf==0.19.0
seen - <<'PY'
import ctypes

import llama_cpp as L
from seen import check
from stock import load
from tiny import write

for value, text in ((1e-5, "0.000010"), (1e-7, "0.000000"), (1.2345678, "1.234568")):
    model, said = load(write("a.gguf", "gemma2", 1, any__value=value), vocab_only=True), ctypes.create_string_buffer(64)
    L.llama_model_meta_val_str(model, b"gemma2.any.value", said, 64)
    check(f"{value} in the file", said.value.decode(), text)
model = load(write("a.gguf", "gemma2", 1, any__value=[2, 3]), vocab_only=True)
check("an array", L.llama_model_meta_val_str(model, b"gemma2.any.value", said, 64), -1)
PY
