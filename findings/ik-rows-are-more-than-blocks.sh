#!/usr/bin/env bash
# ik-llama-cpp-python 0.1.5 (ik_llama.cpp): of some types a row is more than its blocks (a scale of the whole row stands before them), so
# that blocks times size of a block, as tensors of llama.cpp are counted, is too little. And general.file_type 41 is Q1_0_G128 there, and
# Q2_0 in llama.cpp (llama-cpp-python 0.3.36).
# Seen:  bytes of a row of 4096 besides its blocks: {'iq4_ks': 4, 'iq2_ks': 2, 'iq4_kss': 4, 'q8_KV': 8, 'iq5_ks': 4, 'iq2_kt': 4,
#        'iq4_kt': 4, 'iq3_ks': 2}
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
install --no-deps ik-llama-cpp-python==0.1.5
seen - <<'PY'
import ctypes
import re
import sysconfig
from pathlib import Path

import llama_cpp
from seen import check

site = Path(sysconfig.get_path("purelib"))
ctypes.CDLL(str(next(site.glob("ik_llama_cpp_python.libs/libgomp*"))), mode=ctypes.RTLD_GLOBAL)
ggml = ctypes.CDLL(str(next(site.glob("ik_llama_cpp_python.libs/libggml*"))))
ggml.ggml_type_name.restype, ggml.ggml_type_size.restype = ctypes.c_char_p, ctypes.c_size_t
ggml.ggml_blck_size.restype = ctypes.c_int64
ggml.ggml_row_size.restype, ggml.ggml_row_size.argtypes = ctypes.c_size_t, [ctypes.c_int, ctypes.c_int64]
N = 4096
more = {ggml.ggml_type_name(kind).decode(): extra for kind in (2, 12, 137, 139, 144, 145, 146, 151, 152, 153, 155, 156)
        if (extra := ggml.ggml_row_size(kind, N) - N // ggml.ggml_blck_size(kind) * ggml.ggml_type_size(kind))}
check(f"bytes of a row of {N} besides its blocks, where there are any", more,
      {"iq4_ks": 4, "iq2_ks": 2, "iq4_kss": 4, "q8_KV": 8, "iq5_ks": 4, "iq2_kt": 4, "iq4_kt": 4, "iq3_ks": 2})
header = (site / "include/llama.h").read_text()
named = [name for name, value in vars(llama_cpp.llama_cpp).items() if name.startswith("LLAMA_FTYPE") and value == 41]
check("file type 41", named, ["LLAMA_FTYPE_MOSTLY_Q2_0"])
check("file type 41 in ik's", re.findall(r"LLAMA_FTYPE_MOSTLY_(\w+) *= 41\b", header), ["Q1_0_G128"])
PY
