"""The keeper of exchanges that leave a full context, through cffi: the server calls its functions on the thread that decodes."""

import logging
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

from edgekv import _native
from edgekv._native.prefix_callbacks import CachedTokens, SequenceTokens, tokens_of

log = logging.getLogger("edgekv")


@dataclass(frozen=True)
class GoneExchanges:
    """The exchanges of a conversation that left its context."""

    tokens: np.ndarray
    """int32 [n], of the whole conversation with its newest message; valid until the call returns."""
    runs: tuple[tuple[int, int], ...]
    """(first, n) of each exchange among them, in order."""

    def of(self, which: int) -> np.ndarray:
        """The tokens of an exchange, a copy."""
        first, n = self.runs[which]
        return self.tokens[first : first + n].copy()


class KeepsExchanges(Protocol):
    """Called on the thread that decodes, between two decodes. An exception is logged, and counts as nothing kept and nothing near."""

    def leave(self, held: SequenceTokens, gone: GoneExchanges, at: np.ndarray) -> None:
        """Exchange i leaves the sequence, which holds it computed from token at[i] on; -1: it does not."""

    def choose(self, held: SequenceTokens, turn: int, gone: GoneExchanges, most: int) -> list[int]:
        """The exchanges, in order, that the held tokens from `turn` on are near, with at most `most` tokens."""

    def put(self, held: SequenceTokens, gone: GoneExchanges, which: int) -> tuple[int, CachedTokens]:
        """Put an exchange's rows behind the held tokens. Returns the position of its first token when they were computed, and their number by place;
        -1: nothing was put in."""


_handle: object = None
"""Keeps the registered keeper alive."""


def set_recalls(keeps: KeepsExchanges | None) -> None:
    """Set the keeper of exchanges; None: there is none. Only while no server runs."""
    global _handle
    _native.prepare()
    from edgekv._native._server import ffi, lib

    _handle = None if keeps is None else ffi.new_handle(keeps)
    if keeps is None:
        lib.edgekv_server_set_recalls(ffi.NULL)
        return
    _define_callbacks()
    lib.edgekv_server_set_recalls(ffi.new("edgekv_recalls *", {
        "leave": lib.edgekv_py_recall_leave, "choose": lib.edgekv_py_recall_choose, "put": lib.edgekv_py_recall_put, "user": _handle}))


def moves() -> bool:
    """Whether the tokens of the running server's context can move to other positions."""
    from edgekv._native._server import lib

    return bool(lib.edgekv_server_moves())


@cache
def _define_callbacks() -> None:
    """Once: the module is compiled, and can be imported only behind `_native.prepare()`."""
    from edgekv._native._server import ffi

    def keeps_of(user) -> KeepsExchanges:
        return ffi.from_handle(user)

    def gone_of(native) -> GoneExchanges:
        tokens = np.frombuffer(ffi.buffer(native.tokens, 4 * native.n_tokens), np.int32)
        return GoneExchanges(tokens, tuple((one.first, one.n) for one in native.runs[0 : native.n_runs]))

    def callback(failure: str, error=None):
        return ffi.def_extern(error=error, onerror=lambda *raised: log.error(failure, exc_info=raised))

    @callback("exchanges that leave the context could not be kept")
    def edgekv_py_recall_leave(user, held, gone, at):
        exchanges = gone_of(gone)
        keeps_of(user).leave(tokens_of(held), exchanges, np.frombuffer(ffi.buffer(at, 4 * len(exchanges.runs)), np.int32))

    @callback("exchanges near a message could not be looked up", error=0)
    def edgekv_py_recall_choose(user, held, turn, gone, most, which):
        chosen = keeps_of(user).choose(tokens_of(held), turn, gone_of(gone), most)
        which[0 : len(chosen)] = chosen
        return len(chosen)

    @callback("the rows of an exchange could not be put back", error=-1)
    def edgekv_py_recall_put(user, held, gone, which, out):
        position, cached = keeps_of(user).put(tokens_of(held), gone_of(gone), which)
        out.ram, out.disk, out.remote = out.ram + cached.ram, out.disk + cached.disk, out.remote + cached.remote
        return position
