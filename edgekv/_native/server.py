"""llama.cpp's HTTP server inside this process, through cffi."""

from __future__ import annotations

from edgekv import _native
from edgekv.errors import EdgeKVError

THREW = 70
"""What `run` returns where the server ended with an exception."""


def run(argv: list[str]) -> int:
    """Run llama-server with `argv` (program name first) and return its exit code. Blocks, without the GIL, until it ends."""
    _native.prepare()
    from edgekv._native._server import ffi, lib

    kept = [ffi.new("char[]", argument.encode()) for argument in argv]
    code = lib.edgekv_server_run(len(kept), ffi.new("char *[]", [*kept, ffi.NULL]))
    if code == THREW:
        raise EdgeKVError(f"the server ended with an exception: {ffi.string(lib.edgekv_server_error()).decode()}")
    return code


def terminate() -> None:
    """Ask the running server to end. Only once it has answered a request: before that there is nothing to ask."""
    from edgekv._native._server import lib

    lib.edgekv_server_terminate()
