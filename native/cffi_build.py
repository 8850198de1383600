"""Writes the C source of the cffi modules (API mode) from the headers' declarations: cffi_build.py core|cpu|server OUTPUT.c LLAMA.H

The declarations are read from the header itself, between its `cffi: begin` and `cffi: end` marks, so that the compiler and cffi see
one text, and the compiler checks every type cffi assumes.
"""

import re
import sys
from pathlib import Path

from cffi import FFI

HEADERS = Path(__file__).resolve().parent / "include"

# Python functions that the native side may call, beside those of `callbacks()`; see edgekv/_native/token_rows.py
CALLBACKS = """
extern "Python" void edgekv_py_described(void *, void const *, size_t);
extern "Python" void edgekv_py_needed(void * const *, int, bool);
"""

# ggml's own reader, of edgekv/_native/gguf_header.py: gguf.h and ggml.h say more. The compiler fills in numbers
GGUF = """
#define GGML_MAX_DIMS ...
enum ggml_type { GGML_TYPE_COUNT, ... };
enum gguf_type { GGUF_TYPE_UINT8, GGUF_TYPE_INT8, GGUF_TYPE_UINT16, GGUF_TYPE_INT16, GGUF_TYPE_UINT32, GGUF_TYPE_INT32, GGUF_TYPE_FLOAT32,
                 GGUF_TYPE_BOOL, GGUF_TYPE_STRING, GGUF_TYPE_ARRAY, GGUF_TYPE_UINT64, GGUF_TYPE_INT64, GGUF_TYPE_FLOAT64, ... };
struct llama_model;
void llama_model_free(struct llama_model *);
struct gguf_context;
void gguf_free(struct gguf_context *);
size_t gguf_get_data_offset(struct gguf_context const *);
int64_t gguf_get_n_kv(struct gguf_context const *);
char const * gguf_get_key(struct gguf_context const *, int64_t);
enum gguf_type gguf_get_kv_type(struct gguf_context const *, int64_t);
enum gguf_type gguf_get_arr_type(struct gguf_context const *, int64_t);
char const * gguf_get_val_str(struct gguf_context const *, int64_t);
void const * gguf_get_val_data(struct gguf_context const *, int64_t);
size_t gguf_get_arr_n(struct gguf_context const *, int64_t);
void const * gguf_get_arr_data(struct gguf_context const *, int64_t);
char const * gguf_get_arr_str(struct gguf_context const *, int64_t, size_t);
int64_t gguf_get_n_tensors(struct gguf_context const *);
size_t gguf_get_tensor_offset(struct gguf_context const *, int64_t);
char const * gguf_get_tensor_name(struct gguf_context const *, int64_t);
int64_t const * gguf_get_tensor_ne(struct gguf_context const *, int64_t);
enum ggml_type gguf_get_tensor_type(struct gguf_context const *, int64_t);
size_t gguf_get_tensor_size(struct gguf_context const *, int64_t);
char const * ggml_type_name(enum ggml_type);
int64_t ggml_blck_size(enum ggml_type);
size_t ggml_type_size(enum ggml_type);
"""

PARTS = ("base", "settings", "context", "observation", "pages", "tokens", "device", "sizes")
"""Of edgekv.h, each behind those whose types it takes."""

MODULES = {
    "core": ("edgekv._native._core", tuple(f"edgekv_{part}.h" for part in PARTS) + ("edgekv.h", "edgekv_gguf.h", "edgekv_inspect.h", "edgekv_testing.h"),
             CALLBACKS + GGUF),
    "cpu": ("edgekv._native._cpu", ("edgekv_cpu.h",), ""),
    "server": ("edgekv._native._server", ("edgekv_server.h",), ""),
}


def declarations(header: str) -> str:
    text = (HEADERS / header).read_text()
    found = re.search(r"/\* cffi: begin \*/(.*)/\* cffi: end \*/", text, re.S)
    if not found:
        raise SystemExit(f"{header} lost its cffi marks")
    return found[1].replace("EDGEKV_API ", "")


def callbacks(declared: str) -> str:
    """A Python function for each member of a struct that is the address of one."""
    members = re.findall(r"^    (\w+) \(\*(\w+)\)\((.*?)\);", declared, re.M)
    return "".join(f'extern "Python" {kind} edgekv_py_{name}({takes});\n' for kind, name, takes in members)


def file_types(llama_h: str) -> str:
    """llama.cpp's enum of the mixes of types in files, whose names it has nowhere else."""
    found = re.search(r"enum llama_ftype \{.*?\};", Path(llama_h).read_text(encoding="utf-8"), re.S)
    if not found:
        raise SystemExit(f"{llama_h} has no enum llama_ftype")
    return found[0]


def main(which: str, output: str, llama_h: str) -> None:
    name, headers, more = MODULES[which]
    ffi = FFI()
    if which == "core":
        more += file_types(llama_h)
    declared = "".join(map(declarations, headers))
    ffi.cdef(declared + callbacks(declared) + more)
    ffi.set_source(name, "\n".join(f'#include "{header}"' for header in headers))
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
