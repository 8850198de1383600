"""Writes the C source of the cffi modules (API mode) from the headers' declarations: cffi_build.py core|cpu|server OUTPUT.c

The declarations are read from the header itself, between its `cffi: begin` and `cffi: end` marks, so that the compiler and cffi see
one text, and the compiler checks every type cffi assumes.
"""

import re
import sys
from pathlib import Path

from cffi import FFI

HEADERS = Path(__file__).resolve().parent / "include"

# Python functions that the native side may call; see edgekv/_native/core.py and edgekv/_native/token_rows.py
CALLBACKS = """
extern "Python" void edgekv_py_attached(edgekv_context *, void *);
extern "Python" void edgekv_py_detached(edgekv_context *, void *);
extern "Python" void edgekv_py_ubatch(edgekv_context *, void *);
extern "Python" int64_t edgekv_py_free_bytes(void *);
extern "Python" void edgekv_py_described(void *, void const *, size_t);
"""

# of edgekv/_native/prefix_callbacks.py, edgekv/_native/recall_callbacks.py and edgekv/_native/http_server.py
SERVER_CALLBACKS = """
extern "Python" void edgekv_py_prefix_expect(void *, edgekv_prefix_tokens const *);
extern "Python" int edgekv_py_prefix_ready(void *, edgekv_prefix_tokens const *, int, int, int);
extern "Python" void edgekv_py_prefix_leave(void *, int);
extern "Python" void edgekv_py_prefix_begin(void *, edgekv_prefix_tokens const *, int, int, edgekv_cached_tokens *);
extern "Python" void edgekv_py_prefix_keep(void *, edgekv_prefix_tokens const *);
extern "Python" void edgekv_py_prefix_snapshot(void *, edgekv_prefix_tokens const *);
extern "Python" int edgekv_py_prefix_start(void *);
extern "Python" int edgekv_py_prefix_settle(void *, edgekv_cached_tokens *);
extern "Python" void edgekv_py_prefix_lost(void *, char const *);
extern "Python" void edgekv_py_recall_leave(void *, edgekv_prefix_tokens const *, edgekv_exchanges const *, int const *);
extern "Python" int edgekv_py_recall_choose(void *, edgekv_prefix_tokens const *, int, edgekv_exchanges const *, int, int *);
extern "Python" int edgekv_py_recall_put(void *, edgekv_prefix_tokens const *, edgekv_exchanges const *, int, edgekv_cached_tokens *);
extern "Python" void edgekv_py_refresh(int);
extern "Python" int edgekv_py_caches(char const *, char const *, char const *, void *);
extern "Python" int edgekv_py_media(char const *, void *);
"""

PARTS = ("base", "settings", "context", "observation", "pages", "tokens", "device", "sizes")
"""Of edgekv.h, each behind those whose types it takes."""

MODULES = {
    "core": ("edgekv._native._core", tuple(f"edgekv_{part}.h" for part in PARTS) + ("edgekv.h", "edgekv_testing.h"), CALLBACKS),
    "cpu": ("edgekv._native._cpu", ("edgekv_cpu.h",), ""),
    "server": ("edgekv._native._server", ("edgekv_server.h",), SERVER_CALLBACKS),
}


def declarations(header: str) -> str:
    text = (HEADERS / header).read_text()
    found = re.search(r"/\* cffi: begin \*/(.*)/\* cffi: end \*/", text, re.S)
    if not found:
        raise SystemExit(f"{header} lost its cffi marks")
    return found[1].replace("EDGEKV_API ", "")


def main(which: str, output: str) -> None:
    name, headers, callbacks = MODULES[which]
    ffi = FFI()
    ffi.cdef("".join(declarations(header) for header in headers) + callbacks)
    ffi.set_source(name, "\n".join(f'#include "{header}"' for header in headers))
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
