"""The keeper of prefixes for the server, through cffi: the server calls its functions on the thread that decodes."""

import logging
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

from edgekv import _native
from edgekv.common.enums import MissReason
from edgekv.prefix_cache.results import Miss

log = logging.getLogger("edgekv")


@dataclass(frozen=True)
class Medium:
    """An image or a sound in a prompt; embeddings replace its tokens."""

    first: int
    """Its first token."""
    n: int
    """The number of its tokens; the last ones may lie after the given tokens."""
    id: str
    """Digests of its file and of the input of its projector."""


@dataclass(frozen=True)
class Mark:
    """A prompt's first tokens stay for a time, because its request asks for it."""

    n: int
    """Tokens."""
    ttl_s: int
    """Seconds."""


@dataclass(frozen=True)
class SequenceTokens:
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
    projector: str = ""
    """The projector's file."""
    at: np.ndarray | None = None
    """int32 [3, n]: position, line and column of each token; None: positions count up. Valid as long as `tokens`."""
    marks: tuple[Mark, ...] = ()
    """In order; they may reach behind the given tokens."""
    in_memory: bool = False
    """The request forbids places below RAM."""


@dataclass
class CachedTokens:
    """edgekv_cached_tokens, as far as `begin` and `settle` count them: tokens that were put into a sequence, by the place that kept them."""

    slot: int | None = None
    """If the context keeps snapshots: the number of the slot's own tokens that stay in the sequence. None: the server decides."""
    ram: int = 0
    disk: int = 0
    remote: int = 0
    comes: bool = False
    """They have their cells; their rows come with the next decode."""
    spacing: int = 0
    """If snapshots are kept: tokens between two in the middle of a long prompt; 0: none there."""
    nearly: tuple[int, int, int, int] = (0, 0, 0, 0)
    """(position, token kept, token asked, tokens lost), as edgekv_near_miss; no token lost: there is none."""

    missed: Miss | None = None
    """Why there are no more; None: there are no more tokens."""

    @property
    def n_kept(self) -> int:
        return self.ram + self.disk + self.remote


class KeepsPrefixes(Protocol):
    """Called on the thread that decodes, between two decodes. An exception is logged, and counts as nothing found and nothing kept."""

    def expect(self, prompt: SequenceTokens) -> None:
        """The prompt waits for a slot, in a context that keeps only rows; its `seq_id` means nothing."""

    def ready(self, prompt: SequenceTokens, n_have: int, goes_on: int | None, alone: bool) -> bool:
        """Whether `begin` can go on at once. Otherwise the server asks again, and answers others meanwhile. alone: it has no other, so the call may take a
        moment."""

    def leave(self, seq_id: int) -> None:
        """Give up a prompt that was not ready."""

    def begin(self, prompt: SequenceTokens, n_have: int, goes_on: int | None) -> CachedTokens:
        """goes_on: None, or the context keeps snapshots and the sequence can go on by itself behind so many tokens, n_have or 0. Where nothing is
        put in the server cuts the sequence there."""

    def keep(self, held: SequenceTokens) -> None: ...

    def snapshot(self, held: SequenceTokens) -> None:
        """The sequence holds these computed tokens and no others."""

    def start(self) -> None:
        """Right before a decode, which computes while the rows come. If this raises, the server calls `settle` before it decodes."""

    def settle(self) -> tuple[int, CachedTokens]:
        """Wait for the rows. Returns the number of tokens before the first one whose rows failed (-1: none failed), never within a medium, and
        the number of these that were put in."""


_handle: object = None
"""Keeps the registered keeper alive."""


def set_prefixes(keeps: KeepsPrefixes | None) -> None:
    """Set the keeper of prefixes; None: there is none. Only while no server runs."""
    global _handle
    _native.prepare()
    from edgekv._native._server import ffi, lib

    _handle = None if keeps is None else ffi.new_handle(keeps)
    if keeps is None:
        lib.edgekv_server_set_prefixes(ffi.NULL)
        return
    _define_callbacks()
    lib.edgekv_server_set_prefixes(ffi.new("edgekv_prefixes *", {
        "expect": lib.edgekv_py_prefix_expect, "ready": lib.edgekv_py_prefix_ready, "leave": lib.edgekv_py_prefix_leave,
        "begin": lib.edgekv_py_prefix_begin, "keep": lib.edgekv_py_prefix_keep, "snapshot": lib.edgekv_py_prefix_snapshot,
        "start": lib.edgekv_py_prefix_start, "settle": lib.edgekv_py_prefix_settle, "user": _handle}))


def tokens_of(native) -> SequenceTokens:
    """An edgekv_prefix_tokens."""
    from edgekv._native._server import ffi

    def text_of(native) -> str:
        return ffi.string(native).decode(errors="surrogateescape")

    tokens = np.frombuffer(ffi.buffer(native.tokens, 4 * native.n_tokens), np.int32)
    adapters = tuple((native.adapters[i].adapter, native.adapters[i].scale) for i in range(native.n_adapters))
    media = tuple(Medium(one.first, one.n, text_of(one.id)) for one in native.media[0 : native.n_media])
    at = None if native.at == ffi.NULL else np.frombuffer(ffi.buffer(native.at, 12 * native.n_tokens), np.int32).reshape(3, -1)
    return SequenceTokens(int(ffi.cast("uintptr_t", native.lctx)), native.seq_id, tokens, adapters, text_of(native.space), media,
                          text_of(native.projector), at, tuple(Mark(one.n, one.ttl_s) for one in native.marks[0 : native.n_marks]),
                          bool(native.in_memory))


@cache
def _define_callbacks() -> None:
    """Once: the module is compiled, and can be imported only behind `_native.prepare()`."""
    from edgekv._native._server import ffi

    def keeps_of(user) -> KeepsPrefixes:
        return ffi.from_handle(user)

    def callback(failure: str, error=None):
        """An exception is logged as `failure`, and the server gets `error`."""
        return ffi.def_extern(error=error, onerror=lambda *raised: log.error(failure, exc_info=raised))

    @callback("kept prefixes could not be fetched")
    def edgekv_py_prefix_expect(user, prompt):
        keeps_of(user).expect(tokens_of(prompt))

    @callback("kept prefixes could not be fetched", error=1)
    def edgekv_py_prefix_ready(user, prompt, n_have, goes_on, alone):
        return keeps_of(user).ready(tokens_of(prompt), n_have, None if goes_on < 0 else goes_on, bool(alone))

    @callback("kept prefixes could not be left")
    def edgekv_py_prefix_leave(user, seq_id):
        keeps_of(user).leave(seq_id)

    @callback("kept prefixes could not be looked up")
    def edgekv_py_prefix_begin(user, prompt, n_have, goes_on, out):
        cached = keeps_of(user).begin(tokens_of(prompt), n_have, None if goes_on < 0 else goes_on)
        out.slot = out.slot if cached.slot is None else cached.slot
        out.ram, out.disk, out.remote, out.comes, out.spacing = cached.ram, cached.disk, cached.remote, cached.comes, cached.spacing
        if cached.missed is not None:
            out.missed, out.missed_at = 1 + list(MissReason).index(cached.missed.reason), cached.missed.at
        out.nearly.position, out.nearly.stored, out.nearly.asked, out.nearly.n_lost = cached.nearly

    @callback("a prefix could not be kept")
    def edgekv_py_prefix_keep(user, held):
        keeps_of(user).keep(tokens_of(held))

    @callback("a snapshot could not be kept")
    def edgekv_py_prefix_snapshot(user, held):
        keeps_of(user).snapshot(tokens_of(held))

    @callback("kept prefixes could not be loaded while the rest is computed", error=0)
    def edgekv_py_prefix_start(user):
        keeps_of(user).start()
        return 1

    @callback("kept prefixes could not be loaded", error=0)  # nothing of the sequence is to be trusted
    def edgekv_py_prefix_settle(user, out):
        position, cached = keeps_of(user).settle()
        out.ram, out.disk, out.remote = cached.ram, cached.disk, cached.remote
        return position
