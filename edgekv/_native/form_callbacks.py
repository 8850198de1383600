"""What holds answers of the server to forms, through cffi: a thread of the server's own calls its functions, threads of requests `check`."""

import logging
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from edgekv import _native
from edgekv.common.errors import ConfigError

log = logging.getLogger("edgekv")


class Vocabulary(Struct, frozen=True):
    """The tokens of a model."""

    address: int
    """Of the llama_vocab, which lives as long as its answers."""
    tokenize: int
    """Address of llama_tokenize()."""
    pieces: Sequence[bytes]
    """Of each token."""
    special: frozenset[int]
    """Tokens that are used by their number alone."""
    ends: Sequence[int]
    """Tokens that end an answer; at least one."""


class HoldsForms(Protocol):
    """A form is a text that begins with %edgekv or %llguidance. ConfigError says in its sentence why there is no answer; other exceptions are logged."""

    def check(self, form: str) -> None:
        """Raises ConfigError where answers cannot be held to the form. Its calls have the marks of the vocabulary that was read."""

    def read(self, vocabulary: Vocabulary) -> None:
        """Answers that begin from now on have these tokens."""

    def begin(self, answer: int, form: str, begun: bytes) -> None:
        """The answer is `begun` so far."""

    def follow(self, answer: int, token: int | None, allowed: int, n_bytes: int) -> None:
        """`token` is the answer's next one; None: it has none yet. Writes to the address `allowed` a bit for each token: whether it may follow."""

    def copy(self, answer: int, to: int) -> None: ...

    def end(self, answer: int) -> None: ...


_kept: object = None
"""Keeps the registered functions' object alive."""


def set_forms(holds: HoldsForms) -> None:
    """Set what holds the answers of the servers that run from now on. Only while no server runs."""
    _native.prepare()
    from edgekv._native._server import ffi, lib

    global _kept
    _kept = holds
    n_bytes = 0

    def callback(failure: str, error=None):
        return ffi.def_extern(error=error, onerror=lambda *raised: log.error(failure, exc_info=raised))

    def told(out, work) -> int:
        """1, or 0 with the sentence of a ConfigError in `out`."""
        try:
            work()
        except ConfigError as error:
            lib.edgekv_server_answer(out, str(error).encode())
            return 0
        return 1

    @callback("a form could not be checked", error=0)
    def edgekv_py_form_check(form, out):
        return told(out, lambda: holds.check(ffi.string(form).decode()))

    @callback("the vocabulary could not be read")
    def edgekv_py_form_read(given):
        nonlocal n_bytes
        ends, kinds = ffi.unpack(given.ends, given.n_tokens), bytes(ffi.buffer(given.kinds, given.n_tokens))
        pieces = bytes(ffi.buffer(given.pieces, ends[-1]))
        n_bytes = (given.n_tokens + 31) // 32 * 4
        holds.read(Vocabulary(int(ffi.cast("uintptr_t", given.vocab)), int(ffi.cast("uintptr_t", given.tokenize)),
                              [pieces[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)],
                              frozenset(token for token, kind in enumerate(kinds) if kind != lib.EDGEKV_TOKEN_TEXT),
                              [token for token, kind in enumerate(kinds) if kind == lib.EDGEKV_TOKEN_END]))

    @callback("an answer's form could not be read", error=0)
    def edgekv_py_form_begin(answer, form, begun, out):
        return told(out, lambda: holds.begin(answer, ffi.string(form).decode(), ffi.string(begun)))

    @callback("an answer's form could not be followed", error=0)
    def edgekv_py_form_follow(answer, token, allowed, out):
        return told(out, lambda: holds.follow(answer, None if token < 0 else token, int(ffi.cast("uintptr_t", allowed)), n_bytes))

    @callback("an answer's form could not be copied")
    def edgekv_py_form_copy(answer, to):
        holds.copy(answer, to)

    @callback("an answer's form could not be ended")
    def edgekv_py_form_end(answer):
        holds.end(answer)

    lib.edgekv_server_set_forms(ffi.new("edgekv_forms *", {
        "check": lib.edgekv_py_form_check, "read": lib.edgekv_py_form_read, "begin": lib.edgekv_py_form_begin,
        "follow": lib.edgekv_py_form_follow, "copy": lib.edgekv_py_form_copy, "end": lib.edgekv_py_form_end}))
