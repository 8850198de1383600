"""llama.cpp's HTTP server inside this process, through cffi: its life, and its documents about the KV hierarchy."""

import ctypes
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, field

from edgekv import _native
from edgekv.common.enums import MissReason
from edgekv.common.errors import EdgeKVError, NativeError

log = logging.getLogger("edgekv")

TIERS = ("slot", "ram", "disk", "remote")
"""In the order of edgekv_server_request."""

THREW = 70
"""The exit code of `run` if the server ended with an exception."""


def run(argv: list[str]) -> int:
    """Run llama-server with `argv` (program name first) and return its exit code. Blocks, without the GIL, until it ends."""
    _native.load()
    from edgekv._native._server import ffi, lib

    kept = [ffi.new("char[]", argument.encode()) for argument in argv]
    with _log_lent():
        code = lib.edgekv_server_run(len(kept), ffi.new("char *[]", [*kept, ffi.NULL]))
    if code == THREW:
        raise EdgeKVError(f"the server ended with an exception: {ffi.string(lib.edgekv_server_error()).decode()}")
    return code


@contextmanager
def _log_lent() -> Iterator[None]:
    """The server takes llama.cpp's log for itself; inside, so that a llama_cpp that was there before has it back afterwards."""
    if "llama_cpp" not in sys.modules:
        yield
        return
    import llama_cpp  # waits where another thread is importing it

    callback, data = llama_cpp.llama_log_callback(), ctypes.c_void_p()
    llama_cpp.llama_log_get(ctypes.byref(callback), ctypes.byref(data))
    try:
        yield
    finally:
        llama_cpp.llama_log_set(callback, data)


def terminate() -> None:
    """Ask the running server to end. Only once it has answered a request: before that there is nothing to ask."""
    from edgekv._native._server import lib

    lib.edgekv_server_terminate()


def turn() -> bool:
    """Make the task loop turn, an idle one too: it calls the function of `on_refresh`, unless it computes. False: no loop runs, or the server sleeps."""
    from edgekv._native._server import lib

    return bool(lib.edgekv_server_turn())


def projector() -> str:
    """The projector of the running server, which embeds images and sound; empty: it has none. Known after the first answered request."""
    from edgekv._native._server import ffi, lib

    return ffi.string(lib.edgekv_server_projector()).decode(errors="surrogateescape")


def projector_bytes(path: Path) -> int:
    """Most bytes that a projector takes. Raises NativeError if llama.cpp cannot use it, and may end the process."""
    from edgekv._native._server import lib

    if not (n_bytes := lib.edgekv_server_projector_bytes(os.fsencode(path))):
        raise NativeError("no images or sound can be read with it")
    return int(n_bytes)


def has_ui() -> bool:
    """Whether this build has llama.cpp's chat page (EDGEKV_UI=on)."""
    from edgekv._native._server import lib

    return bool(lib.edgekv_server_has_ui())


# ---- limits and waits --------------------------------------------------------------------------------------------------------------


class Pacing(Struct, frozen=True):
    """Seconds that answers wait, and requests that were refused, since the server started."""

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
    n_running: int
    """Slots at work when the newest batch began."""


class Waits(Struct, frozen=True):
    """A histogram of waits: their number by duration."""

    bounds: tuple[float, ...]
    """Seconds, ascending."""
    counts: tuple[int, ...]
    """Counts of waits up to each bound and above the one before, and of waits above all bounds."""
    sum_s: float
    """Seconds of all of them together."""


def limit(max_gap_s: float, n_slots: int, max_queue: int, max_body: int) -> None:
    """Set the limits of the servers that `run` starts from now on; seconds, slots, requests that wait, bytes of a request."""
    from edgekv._native._server import lib

    lib.edgekv_server_limit(max_gap_s, n_slots, max_queue, max_body)


def strict_fields(on: bool) -> None:
    """Refuse requests with a field that the table of fields does not have, from now on."""
    from edgekv._native._server import lib

    lib.edgekv_server_strict(on)


def fields() -> list[list[str]]:
    """The table of requests' fields: of each row the letters of its endpoints, the name, "done", "refused" or "said", what is allowed, and a note."""
    from edgekv._native._server import ffi, lib

    return [line.split("\t") for line in ffi.string(lib.edgekv_server_fields()).decode().splitlines()]


def roll(on: bool) -> None:
    """Let whole oldest exchanges leave a full context in the servers that `run` starts from now on; else answers end, and longer prompts are
    refused."""
    from edgekv._native._server import lib

    lib.edgekv_server_roll(on)


def draft_from_text(on: bool) -> None:
    """Let the servers that `run` starts from now on, and whose options draft from n-grams, guess in EdgeKV's way instead of upstream's."""
    from edgekv._native._server import lib

    lib.edgekv_server_draft(on)


def admit(names: Iterable[str], any_address: bool) -> None:
    """Set the names under which the servers that `run` starts from now on answer, as `edgekv.server.sites.Admitted` has them."""
    from edgekv._native._server import lib

    lib.edgekv_server_admit(",".join(names).encode(), any_address)


def set_spaces(spaces: dict[str, str]) -> None:
    """Set the namespace of each key, for the servers that `run` starts from now on. Without keys all requests are in one."""
    from edgekv._native._server import ffi, lib

    keys, names = ([ffi.new("char[]", text.encode()) for text in texts] for texts in (spaces, spaces.values()))
    lib.edgekv_server_spaces(len(keys), ffi.new("char *[]", [*keys, ffi.NULL]), ffi.new("char *[]", [*names, ffi.NULL]))


def pacing() -> Pacing:
    """The pacing of the server, or of the last one if none runs. Call it from any thread."""
    from edgekv._native._server import ffi, lib

    found = ffi.new("edgekv_server_pacing *")
    lib.edgekv_server_pace(found)
    return Pacing(found.max_gap_s, found.worst_gap_s, found.last_gap_s, found.n_mixed, found.n_prompt_batch, found.n_requests,
                  found.n_refused, found.n_running)


def reading_s(first: int, n: int) -> float:
    """Seconds that n tokens of a prompt take after the first `first`, by the newest batches; 0: unknown. Call it from any thread."""
    from edgekv._native._server import lib

    return lib.edgekv_server_reading_s(first, n)


def waits() -> tuple[Waits, Waits, Waits]:
    """Waits for a slot, from a request to the first token of its answer, and between two tokens of an answer, since the server started. From any
    thread."""
    from edgekv._native._server import ffi, lib

    found = ffi.new("edgekv_server_waits *")

    def of(which: int) -> Waits:
        lib.edgekv_server_waited(which, found)
        return Waits(tuple(found.bounds), tuple(found.counts), found.sum_s)

    return of(lib.EDGEKV_WAIT_QUEUE), of(lib.EDGEKV_WAIT_FIRST_TOKEN), of(lib.EDGEKV_WAIT_NEXT_TOKEN)


class Request(Struct, frozen=True):
    """What a request does in its slot: when its prompt begins, and when it has ended."""

    slot: int
    n_prompt: int
    """Tokens of its prompt."""
    n_found: int
    """Tokens of its prompt that were not computed."""
    by_tier: dict[str, int]
    """These, by tier; only those that gave any."""
    n_read: int
    """Tokens of its prompt that were computed."""
    n_answer: int
    read_s: float
    """Seconds of the prompt."""
    answer_s: float
    """Of the answer, from its first token on."""
    n_lost: int = 0
    """Tokens that were read before and are read again, if they are many; else 0."""
    missed: tuple[MissReason, int] | None = None
    """Why not more was found, and the first token that it is about; None: all was found."""
    ended: bool = True


class PrefixCounts(Struct, frozen=True):
    """Tokens of prompts since the server started, but for each prompt's last, which is always computed."""

    queries: int = 0
    """All of them: those found and those missed."""
    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    """Found, by tier."""
    misses: dict[MissReason, int] = field(default_factory=lambda: dict.fromkeys(MissReason, 0))

    def plus(self, request: Request) -> "PrefixCounts":
        """With those of a request whose prompt begins."""
        n_missed = max(0, request.n_prompt - 1 - request.n_found)
        why = request.missed[0] if request.missed else None
        return PrefixCounts(self.queries + request.n_found + n_missed, {tier: n + request.by_tier.get(tier, 0) for tier, n in self.hits.items()},
                            {reason: n + (n_missed if reason is why else 0) for reason, n in self.misses.items()})


def _request(of) -> Request:
    tiers = {tier: n for tier, n in zip(TIERS, of.by_tier, strict=True) if n}
    return Request(of.slot, of.n_prompt, of.n_found, tiers, of.n_read, of.n_answer, of.read_s, of.answer_s, of.n_lost,
                   (tuple(MissReason)[of.missed - 1], of.missed_at) if of.missed else None, bool(of.ended))


def on_request(function: Callable[[Request], None]) -> None:
    """Let the thread that decodes call a function with each request whose prompt begins, and when it ends."""
    from edgekv._native._server import ffi, lib

    @ffi.def_extern("edgekv_py_request", onerror=lambda *raised: log.error("a request's figures could not be taken", exc_info=raised))
    def told(request):
        function(_request(request))

    lib.edgekv_server_on_request(lib.edgekv_py_request)


# ---- kept prompts ---------------------------------------------------------------------------------------------------------------

_caches: object = None
"""Keeps the registered function alive."""


def answer_caches(function: Callable[[str, str, str], tuple[int, str]] | None) -> None:
    """Let a function answer the requests for /edgekv/cache of the servers that `run` starts from now on; None: they keep no prompts. It gets the
    method, the namespace of the request's key and cache_salt, and the fields as a JSON object, and returns the HTTP status and a JSON text. Threads
    of requests call it, several at a time."""
    _native.prepare()
    from edgekv._native._server import ffi, lib

    global _caches
    lib.edgekv_server_on_caches(ffi.NULL)
    _caches = function
    if function is None:
        return

    @ffi.def_extern("edgekv_py_caches", error=500, onerror=lambda *raised: log.error("a request for kept prompts failed", exc_info=raised))
    def answer(method, space, fields, out):
        status, text = function(*(ffi.string(one).decode(errors="replace") for one in (method, space, fields)))
        lib.edgekv_server_answer(out, text.encode())
        return status

    lib.edgekv_server_on_caches(lib.edgekv_py_caches)


# ---- media ----------------------------------------------------------------------------------------------------------------------

_fetch: object = None
"""Keeps the registered function alive."""


def fetch_media(function: Callable[[str], tuple[bool, str]]) -> None:
    """Let a function fetch what requests of the servers that `run` starts from now on name by address: (True, a data URL), or (False, why not).
    Threads of requests call it, several at a time."""
    _native.prepare()
    from edgekv._native._server import ffi, lib

    global _fetch
    _fetch = function

    @ffi.def_extern("edgekv_py_media", error=0, onerror=lambda *raised: log.error("a medium could not be fetched", exc_info=raised))
    def answer(url, out):
        fetched, text = function(ffi.string(url).decode(errors="replace"))
        lib.edgekv_server_answer(out, text.encode())
        return fetched

    lib.edgekv_server_on_media(lib.edgekv_py_media)


# ---- documents ------------------------------------------------------------------------------------------------------------------

_on_refresh: Callable[[bool], None] | None = None
_is_defined = False


def publish(path: str, kind: str, text: str) -> None:
    """Show a text of a media type under a path such as "/edgekv/state", in the place of the one before. "props", "slots" and "metrics" go into
    upstream's answers. From any thread, at any time."""
    from edgekv._native._server import lib

    lib.edgekv_server_publish(path.encode(), kind.encode(), text.encode())


def withdraw() -> None:
    """Take all documents back, and call no function any more."""
    from edgekv._native._server import ffi, lib

    global _on_refresh
    _on_refresh = None
    lib.edgekv_server_on_refresh(ffi.NULL)
    lib.edgekv_server_withdraw()


def asked_ms(path: str) -> int:
    """Milliseconds since a document was last asked for; -1: it never was."""
    from edgekv._native._server import lib

    return lib.edgekv_server_asked_ms(path.encode())


def on_refresh(function: Callable[[bool], None]) -> None:
    """The thread that decodes calls `function(idle)` between two batches: before it answers /metrics and /slots, and (idle) where the server has
    nothing left to do. An exception is logged, not passed on."""
    from edgekv._native._server import ffi, lib

    global _on_refresh, _is_defined
    if not _is_defined:
        ffi.def_extern("edgekv_py_refresh")(_refresh)
        _is_defined = True
    _on_refresh = function
    lib.edgekv_server_on_refresh(lib.edgekv_py_refresh)


def _refresh(idle: bool) -> None:
    function = _on_refresh
    if function is not None:
        try:
            function(bool(idle))
        except Exception:
            log.exception("the server's figures could not be brought up to date")
