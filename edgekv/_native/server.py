"""llama.cpp's HTTP server inside this process, through cffi."""

from __future__ import annotations

from dataclasses import dataclass

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


# ---- what one request may cost the others -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pacing:
    """How long answers wait, in seconds, and what was refused, since the server started."""

    max_gap_s: float
    """The bound on a running answer's wait for its next token; 0: none."""
    worst_gap_s: float
    """The longest wait there was."""
    last_gap_s: float
    n_mixed: int
    """Batches that held prompt tokens and the next tokens of running answers."""
    n_prompt_batch: int
    """Prompt tokens that the newest of these was allowed."""
    n_requests: int
    """Answered or waiting now."""
    n_refused: int
    """Requests that found no place."""


def limit(max_gap_s: float, n_slots: int, max_queue: int) -> None:
    """Set the limits of the servers that `run` starts from now on; seconds, slots, requests that wait."""
    from edgekv._native._server import lib

    lib.edgekv_server_limit(max_gap_s, n_slots, max_queue)


def pacing() -> Pacing:
    """From any thread; of the last server where none runs."""
    from edgekv._native._server import ffi, lib

    found = ffi.new("edgekv_server_pacing *")
    lib.edgekv_server_pace(found)
    return Pacing(found.max_gap_s, found.worst_gap_s, found.last_gap_s, found.n_mixed, found.n_prompt_batch, found.n_requests,
                  found.n_refused)
