"""The keepers of prefixes, and of exchanges that leave a full context, through cffi. The server calls their methods on the thread that decodes, between
two decodes, as `edgekv_server.h` says of the functions of the same names. An exception is logged, and counts as nothing found and nothing kept."""

from functools import cache

import numpy as np
from msgspec import Struct

from edgekv._native.http_server import callback, program
from edgekv.common.enums import MissReason
from edgekv.prefix_cache.results import Miss


class Medium(Struct, frozen=True):
    """An image or a sound in a prompt; embeddings replace its tokens."""

    first: int
    """Its first token."""
    n: int
    """The number of its tokens; the last ones may lie after the given tokens."""
    id: str
    """Digests of its file and of the input of its projector."""


class SequenceTokens(Struct, frozen=True):
    """Tokens of a sequence of the server: a prompt that begins, or tokens that were computed."""

    address: int
    """Of the llama_context."""
    seq_id: int
    tokens: np.ndarray
    """int32 [n], -1 for tokens of media; valid until the call returns."""
    adapters: tuple[tuple[int, float], ...]
    """LoRA adapters that K and V depend on: the address of each llama_adapter_lora, which lives as long as the context, and its scale."""
    space: str = ""
    """The namespace: tokens of another are never a prefix of these."""
    media: tuple[Medium, ...] = ()
    """In order."""
    at: np.ndarray | None = None
    """int32 [3, n]: position, line and column of each token; None: positions count up. Valid as long as `tokens`."""
    marks: tuple[tuple[int, int], ...] = ()
    """(n, ttl_s): a prompt's first n tokens stay so many seconds, because its request asks for it. In order; they may reach behind the given tokens."""
    in_memory: bool = False
    """The request forbids places below RAM."""


class CachedTokens(Struct):
    """edgekv_cached_tokens, as far as `load` and `release` count them: tokens that were put into a sequence, by the place that kept them."""

    slot: int | None = None
    """If the context keeps snapshots: the number of the slot's own tokens that stay in the sequence. None: the server decides."""
    ram: int = 0
    disk: int = 0
    remote: int = 0
    comes: bool = False
    """They have their cells; their rows come with the next decode."""
    spacing: int = 0
    """If snapshots are kept: tokens between two in the middle of a long prompt; 0: none there."""
    missed: Miss | None = None
    """Why there are no more; None: there are no more tokens."""

    @property
    def n_kept(self) -> int:
        return self.ram + self.disk + self.remote


class GoneExchanges(Struct, frozen=True):
    """The exchanges of a conversation that left its context."""

    tokens: np.ndarray
    """int32 [n], of the whole conversation with its newest message; valid until the call returns."""
    runs: tuple[tuple[int, int], ...]
    """(first, n) of each exchange among them, in order."""

    def of(self, which: int) -> np.ndarray:
        """The tokens of an exchange, a copy."""
        first, n = self.runs[which]
        return self.tokens[first : first + n].copy()


def moves() -> bool:
    """Whether the tokens of the running server's context can move to other positions."""
    from edgekv._native._server import lib

    return bool(lib.edgekv_server_moves())


def tokens_of(native) -> SequenceTokens:
    """An edgekv_prefix_tokens."""
    from edgekv._native._server import ffi

    def text_of(native) -> str:
        return ffi.string(native).decode(errors="surrogateescape")

    tokens = np.frombuffer(ffi.buffer(native.tokens, 4 * native.n_tokens), np.int32)
    adapters = tuple((native.adapters[i].adapter, native.adapters[i].scale) for i in range(native.n_adapters))
    media = tuple(Medium(one.first, one.n, text_of(one.id)) for one in native.media[0 : native.n_media])
    at = None if native.at == ffi.NULL else np.frombuffer(ffi.buffer(native.at, 12 * native.n_tokens), np.int32).reshape(3, -1)
    return SequenceTokens(int(ffi.cast("uintptr_t", native.lctx)), native.seq_id, tokens, adapters, text_of(native.space), media, at,
                          tuple((one.n, one.ttl_s) for one in native.marks[0 : native.n_marks]),
                          bool(native.in_memory))


@cache
def define() -> None:
    """Before the server's context is loaded: its keepers are those of `http_server.program`."""
    from edgekv._native._server import ffi

    def goes_on_of(native: int) -> int | None:
        return None if native < 0 else native

    def gone_of(native) -> GoneExchanges:
        tokens = np.frombuffer(ffi.buffer(native.tokens, 4 * native.n_tokens), np.int32)
        return GoneExchanges(tokens, tuple((one.first, one.n) for one in native.runs[0 : native.n_runs]))

    @callback("kept prefixes could not be fetched", error=1)
    def edgekv_py_match(prompt, n_have, goes_on, alone):
        return program.prefixes.match(tokens_of(prompt), n_have, goes_on_of(goes_on), bool(alone))

    @callback("kept prefixes could not be looked up")
    def edgekv_py_load(prompt, n_have, goes_on, out):
        cached = program.prefixes.load(tokens_of(prompt), n_have, goes_on_of(goes_on))
        out.slot = out.slot if cached.slot is None else cached.slot
        out.ram, out.disk, out.remote, out.comes, out.spacing = cached.ram, cached.disk, cached.remote, cached.comes, cached.spacing
        if cached.missed is not None:
            out.missed, out.missed_at = 1 + list(MissReason).index(cached.missed.reason), cached.missed.at

    @callback("kept prefixes could not be loaded while the rest is computed", error=0)
    def edgekv_py_start():
        program.prefixes.start()
        return 1

    @callback("a prefix could not be kept")
    def edgekv_py_insert(held, rows, snapshot):
        program.prefixes.insert(tokens_of(held), bool(rows), bool(snapshot))

    @callback("kept prefixes could not be loaded", error=0)  # nothing of the sequence is to be trusted
    def edgekv_py_release(seq_id, out):
        position, cached = program.prefixes.release(seq_id)
        out.ram, out.disk, out.remote = cached.ram, cached.disk, cached.remote
        return position

    @callback("kept prefixes could not be evicted", error=0)
    def edgekv_py_evict(n_bytes):
        return program.prefixes.evict(n_bytes)

    @callback("exchanges that leave the context could not be kept")
    def edgekv_py_leave(held, gone, at):
        exchanges = gone_of(gone)
        program.recalls.leave(tokens_of(held), exchanges, np.frombuffer(ffi.buffer(at, 4 * len(exchanges.runs)), np.int32))

    @callback("exchanges near a message could not be looked up", error=0)
    def edgekv_py_choose(held, turn, gone, most, which):
        chosen = program.recalls.choose(tokens_of(held), turn, gone_of(gone), most)
        which[0 : len(chosen)] = chosen
        return len(chosen)

    @callback("the rows of an exchange could not be put back", error=-1)
    def edgekv_py_put(held, gone, which, out):
        position, cached = program.recalls.put(tokens_of(held), gone_of(gone), which)
        out.ram, out.disk, out.remote = out.ram + cached.ram, out.disk + cached.disk, out.remote + cached.remote
        return position
