#!/usr/bin/env bash
# gguf 0.19.0 and the ggml in llama-cpp-python 0.3.36: GGUFWriter writes and GGUFReader reads what ggml refuses: a tensor's name of 64 bytes
# (GGUF's description allows "at most 64 bytes", ggml keeps one for a final zero), five dimensions, and an array of arrays, which the
# description allows too.
# Seen:  a name of 63 bytes: True; of 64: False; five dimensions: False; an array of arrays: False
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36 gguf==0.19.0
seen - <<'PY'
import ctypes
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from seen import check

ggml = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))


class Params(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


ggml.gguf_init_from_file.argtypes, ggml.gguf_init_from_file.restype = [ctypes.c_char_p, Params], ctypes.c_void_p


def reads(name: str = "a", shape: tuple = (2, 2), value: object = 1) -> tuple[str, bool]:
    """(what GGUFReader has of the tensor, whether ggml reads the file)"""
    w = gguf.GGUFWriter("a.gguf", "llama")
    w.add_array("any.value", [value])
    w.add_tensor(name, np.zeros(shape, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    tensor = gguf.GGUFReader("a.gguf").tensors[0]
    return f"{len(tensor.name)} bytes, {len(tensor.shape)} dimensions", ggml.gguf_init_from_file(b"a.gguf", Params(True, None)) is not None


check("a name of 63 bytes", reads(name="n" * 63), ("63 bytes, 2 dimensions", True))
check("of 64", reads(name="n" * 64), ("64 bytes, 2 dimensions", False))
check("five dimensions", reads(shape=(1, 2, 3, 4, 5)), ("1 bytes, 5 dimensions", False))
check("an array of arrays", reads(value=[1, 2]), ("1 bytes, 2 dimensions", False))
PY
