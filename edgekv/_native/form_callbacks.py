"""What holds answers of the server to forms, through cffi: a thread of the server's own calls its functions, threads of requests `check`."""

from collections.abc import Sequence
from functools import cache

from msgspec import Struct

from edgekv._native.http_server import callback, program
from edgekv.common.errors import ConfigError


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


@cache
def define() -> None:
    """Before the server's context is loaded: answers are held to forms by `http_server.program.forms`. A ConfigError says in its sentence why there is no
    answer."""
    from edgekv._native._server import ffi, lib

    def told(out, work) -> int:
        """1, or 0 with the sentence of a ConfigError in `out`."""
        try:
            work()
        except ConfigError as error:
            lib.edgekv_server_answer(out, str(error).encode())
            return 0
        return 1

    @callback("a form could not be checked", error=0)
    def edgekv_py_check(form, out):
        return told(out, lambda: program.forms.check(ffi.string(form).decode()))

    @callback("the vocabulary could not be read")
    def edgekv_py_read(given):
        ends, kinds = ffi.unpack(given.ends, given.n_tokens), bytes(ffi.buffer(given.kinds, given.n_tokens))
        pieces = bytes(ffi.buffer(given.pieces, ends[-1]))
        program.forms.read(Vocabulary(
            int(ffi.cast("uintptr_t", given.vocab)), int(ffi.cast("uintptr_t", given.tokenize)),
            [pieces[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)],
            frozenset(token for token, kind in enumerate(kinds) if kind != lib.EDGEKV_TOKEN_TEXT),
            [token for token, kind in enumerate(kinds) if kind == lib.EDGEKV_TOKEN_END]))

    @callback("an answer's form could not be read", error=0)
    def edgekv_py_begin(answer, form, begun, out):
        return told(out, lambda: program.forms.begin(answer, ffi.string(form).decode(), ffi.string(begun)))

    @callback("an answer's form could not be followed", error=0)
    def edgekv_py_follow(answer, token, allowed, out):
        return told(out, lambda: program.forms.follow(answer, None if token < 0 else token, int(ffi.cast("uintptr_t", allowed))))

    @callback("an answer's form could not be copied")
    def edgekv_py_copy(answer, to):
        program.forms.copy(answer, to)

    @callback("an answer's form could not be ended")
    def edgekv_py_end(answer):
        program.forms.end(answer)
