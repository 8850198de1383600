"""llama.cpp's HTTP server inside this process, through cffi."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgekv import _native
from edgekv.errors import EdgeKVError

log = logging.getLogger("edgekv")

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


# ---- prefixes -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SequenceTokens:
    """Tokens of a sequence of the server: a prompt that begins, or what was computed."""

    address: int
    """Of the llama_context."""
    seq_id: int
    tokens: np.ndarray
    """int32 [n]; lives until the call returns."""
    adapters: str
    """What K and V depend on besides the model: another text for other adapters or scales."""


@dataclass
class Found:
    """Tokens that `begin` put into a sequence, by where they came from; `nearly` = (position, token kept, token asked, tokens lost)."""

    ram: int = 0
    disk: int = 0
    remote: int = 0
    nearly: tuple[int, int, int, int] = (0, 0, 0, 0)


class KeepsPrefixes(Protocol):
    """Both are called on the thread that decodes, between two decodes. What they raise is logged, and nothing was found or kept."""

    def begin(self, prompt: SequenceTokens, n_have: int) -> Found: ...

    def keep(self, held: SequenceTokens) -> None: ...


_keeps: KeepsPrefixes | None = None


def set_prefixes(keeps: KeepsPrefixes | None) -> None:
    """Who keeps prefixes for the server; None: nobody. Only while no server runs."""
    global _keeps
    _native.prepare()
    from edgekv._native._server import ffi, lib

    _keeps = keeps
    if keeps is None:
        lib.edgekv_server_set_prefixes(ffi.NULL)
        return
    _define_callbacks()
    lib.edgekv_server_set_prefixes(ffi.new("edgekv_prefixes *", {
        "begin": lib.edgekv_py_prefix_begin, "keep": lib.edgekv_py_prefix_keep, "user": ffi.NULL}))


_defined = False


def _define_callbacks() -> None:
    """Once: the module is compiled, and can be imported only behind `_native.prepare()`."""
    global _defined
    if _defined:
        return
    from edgekv._native._server import ffi

    def tokens_of(native) -> SequenceTokens:
        tokens = np.frombuffer(ffi.buffer(native.tokens, 4 * native.n_tokens), np.int32)
        return SequenceTokens(int(ffi.cast("uintptr_t", native.lctx)), native.seq_id, tokens, ffi.string(native.adapters).decode())

    @ffi.def_extern()
    def edgekv_py_prefix_begin(_user, prompt, n_have, out):
        try:
            found = _keeps.begin(tokens_of(prompt), n_have) if _keeps else Found()
            out.ram, out.disk, out.remote = found.ram, found.disk, found.remote
            out.nearly.position, out.nearly.stored, out.nearly.asked, out.nearly.n_lost = found.nearly
        except Exception:
            log.exception("kept prefixes could not be looked up")

    @ffi.def_extern()
    def edgekv_py_prefix_keep(_user, held):
        try:
            if _keeps:
                _keeps.keep(tokens_of(held))
        except Exception:
            log.exception("a prefix could not be kept")

    _defined = True


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
