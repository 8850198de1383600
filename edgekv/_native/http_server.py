"""llama.cpp's HTTP server inside this process, through cffi: its life, and its documents about the KV hierarchy."""

import ctypes
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from edgekv import _native
from edgekv.common.enums import MissReason
from edgekv.common.errors import EdgeKVError, NativeError

log = logging.getLogger("edgekv")

TIERS = ("slot", "ram", "disk", "remote")
"""In the order of edgekv_server_request."""

THREW = 70
"""The exit code of `run` if the server ended with an exception."""


class Program:
    """What the running server calls, which may change meanwhile. An exception is logged."""

    prefixes: Any = None
    """With the methods of `edgekv_prefixes`; `edgekv._native.prefix_callbacks` says what they get."""
    recalls: Any = None
    forms: Any = None
    """`edgekv._native.form_callbacks`."""
    caches: Callable[[str, str, str], tuple[int, str]]
    """Answers requests for /edgekv/cache: of the method, the namespace of the request's key and cache_salt, and the fields as a JSON object, the HTTP status
    and a JSON text. Threads of requests, several at a time."""
    media: Callable[[str], tuple[bool, str]]
    """Fetches what a request names by address: (True, a data URL), or (False, why not). Threads of requests."""
    request: Callable[["Request"], object]
    """A request's prompt begins, or it has ended. The thread that decodes."""
    refresh: Callable[[bool], object]
    """Gets whether the server has nothing left to do; else it is about to answer /metrics or /slots. The thread that decodes, between two batches."""


program = Program()


def callback(failure: str, error: Any = None) -> Callable:
    """Defines the function that the server calls by this name. An exception is logged as `failure`, and the server gets `error`."""
    from edgekv._native._server import ffi

    return ffi.def_extern(error=error, onerror=lambda *raised: log.error(failure, exc_info=raised))


def run(argv: list[str], hosts: Iterable[str] | None = None, spaces: Mapping[str, str] | None = None, keeps: bool = False, recalls: bool = False,
        **limits: float) -> int:
    """Run llama-server with `argv` (program name first) and return its exit code. Blocks, without the GIL, until it ends.

    Args:
        hosts: the names under which it answers, as `edgekv.server.sites.Admitted` has them; None: any, and nothing of `program` is called.
        spaces: the namespace of each key; without keys all requests are in one.
        keeps: `program` has `prefixes`; recalls: and `recalls`.
        limits: the other fields of `edgekv_server_settings`.
    """
    _native.load()
    from edgekv._native._server import ffi, lib

    alive: list[object] = []

    def texts(given: Iterable[str]):
        kept = [ffi.new("char[]", text.encode()) for text in given]
        alive.extend((*kept, array := ffi.new("char *[]", [*kept, ffi.NULL])))
        return array

    def calls(kind: str) -> dict:
        return {name: getattr(lib, f"edgekv_py_{name}") for name, field in ffi.typeof(kind).fields if field.type.kind == "function"}

    def table(kind: str, there: bool = True):
        alive.append(made := ffi.new(f"{kind} *", calls(kind)) if there else ffi.NULL)
        return made

    settings = ffi.NULL
    if hosts is not None:
        _define_callbacks()
        settings = ffi.new("edgekv_server_settings *", {
            **limits, **calls("edgekv_server_settings"), "hosts": texts(hosts), "spaces": texts(chain.from_iterable((spaces or {}).items())),
            "prefixes": table("edgekv_prefixes", keeps), "recalls": table("edgekv_recalls", recalls), "forms": table("edgekv_forms")})
    with _log_lent():
        code = lib.edgekv_server_run(len(argv), texts(argv), settings)
    if code == THREW:
        raise EdgeKVError(f"the server ended with an exception: {ffi.string(lib.edgekv_server_error()).decode()}")
    return code


@cache
def _define_callbacks() -> None:
    from edgekv._native._server import ffi, lib

    @callback("a request's figures could not be taken")
    def edgekv_py_request(request):
        program.request(_request(request))

    @callback("the server's figures could not be brought up to date")
    def edgekv_py_refresh(idle):
        program.refresh(bool(idle))

    @callback("a request for kept prompts failed", error=500)
    def edgekv_py_caches(method, space, fields, out):
        status, text = program.caches(*(ffi.string(one).decode(errors="replace") for one in (method, space, fields)))
        lib.edgekv_server_answer(out, text.encode())
        return status

    @callback("a medium could not be fetched", error=0)
    def edgekv_py_media(url, out):
        fetched, text = program.media(ffi.string(url).decode(errors="replace"))
        lib.edgekv_server_answer(out, text.encode())
        return fetched


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
    """Make the task loop turn, an idle one too: it calls `program.refresh`, unless it computes. False: no loop runs, or the server sleeps."""
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


class Waits(Struct, frozen=True):
    """A histogram of waits: their number by duration."""

    bounds: tuple[float, ...]
    """Seconds, ascending."""
    counts: tuple[int, ...]
    """Counts of waits up to each bound and above the one before, and of waits above all bounds."""
    sum_s: float
    """Seconds of all of them together."""


def fields() -> list[list[str]]:
    """The table of requests' fields: of each row the letters of its endpoints, the name, "done", "refused" or "said", what is allowed, and a note."""
    from edgekv._native._server import ffi, lib

    return [line.split("\t") for line in ffi.string(lib.edgekv_server_fields()).decode().splitlines()]


def pacing() -> Any:
    """The edgekv_server_pacing of the server, or of the last one if none runs. Call it from any thread."""
    from edgekv._native._server import ffi, lib

    lib.edgekv_server_pace(found := ffi.new("edgekv_server_pacing *"))
    return found


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


# ---- documents ------------------------------------------------------------------------------------------------------------------

def publish(path: str, kind: str, text: str) -> None:
    """Show a text of a media type under a path such as "/edgekv/state", in the place of the one before. "props", "slots" and "metrics" go into
    upstream's answers. From any thread, at any time."""
    from edgekv._native._server import lib

    lib.edgekv_server_publish(path.encode(), kind.encode(), text.encode())


def withdraw() -> None:
    """Take all documents back."""
    from edgekv._native._server import lib

    lib.edgekv_server_withdraw()


def asked_ms(path: str) -> int:
    """Milliseconds since a document was last asked for; -1: it never was."""
    from edgekv._native._server import lib

    return lib.edgekv_server_asked_ms(path.encode())
