"""A keeper of prefixes of conversations for the server, through cffi: the server's decoding thread calls its functions."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgekv import _native

log = logging.getLogger("edgekv")



@dataclass(frozen=True)
class SequenceTokens:
    """Tokens of a sequence of the server: a prompt that begins, or tokens that were computed."""

    address: int
    """Of the llama_context."""
    seq_id: int
    tokens: np.ndarray
    """int32 [n]; lives until the call returns."""
    adapters: tuple[tuple[int, float], ...]
    """LoRA adapters that K and V depend on: the address of each llama_adapter_lora, which lives as long as the context, and its scale."""
    space: str = ""
    """The namespace: tokens of another are never a prefix of these."""


@dataclass
class PrefixSources:
    """Tokens that `begin` put into a sequence, by where they came from; `nearly` = (position, token kept, token asked, tokens lost)."""

    ram: int = 0
    disk: int = 0
    remote: int = 0
    comes: bool = False
    """They have their cells; their rows come with the next decode."""
    nearly: tuple[int, int, int, int] = (0, 0, 0, 0)


class KeepsPrefixes(Protocol):
    """The thread that decodes calls all of them, between two decodes. An exception is logged, and nothing was found or kept."""

    def ready(self, prompt: SequenceTokens, n_have: int, alone: bool) -> bool:
        """Whether `begin` would wait for nobody's answer. Else it is asked again, while others are answered; alone: nobody is, so that it may
        take a moment."""

    def leave(self, seq_id: int) -> None:
        """The prompt that was not ready does not begin."""

    def begin(self, prompt: SequenceTokens, n_have: int) -> PrefixSources: ...

    def keep(self, held: SequenceTokens) -> None: ...

    def start(self) -> None:
        """Directly before a decode: rows that are to come do so while it computes. Where this raises `settle` comes first."""

    def settle(self) -> tuple[int, PrefixSources]:
        """Wait for the rows that were to come: the position of the first token whose rows could not be had, -1: none; and what is there."""


_keeps: KeepsPrefixes | None = None


def set_prefixes(keeps: KeepsPrefixes | None) -> None:
    """Set the keeper of prefixes for the server; None: there is none. Only while no server runs."""
    global _keeps
    _native.prepare()
    from edgekv._native._server import ffi, lib

    _keeps = keeps
    if keeps is None:
        lib.edgekv_server_set_prefixes(ffi.NULL)
        return
    _define_callbacks()
    lib.edgekv_server_set_prefixes(ffi.new("edgekv_prefixes *", {
        "ready": lib.edgekv_py_prefix_ready, "leave": lib.edgekv_py_prefix_leave, "begin": lib.edgekv_py_prefix_begin,
        "keep": lib.edgekv_py_prefix_keep, "start": lib.edgekv_py_prefix_start, "settle": lib.edgekv_py_prefix_settle, "user": ffi.NULL}))


_defined = False


def _define_callbacks() -> None:
    """Once: the module is compiled, and can be imported only behind `_native.prepare()`."""
    global _defined
    if _defined:
        return
    from edgekv._native._server import ffi

    def tokens_of(native) -> SequenceTokens:
        tokens = np.frombuffer(ffi.buffer(native.tokens, 4 * native.n_tokens), np.int32)
        adapters = tuple((native.adapters[i].adapter, native.adapters[i].scale) for i in range(native.n_adapters))
        return SequenceTokens(int(ffi.cast("uintptr_t", native.lctx)), native.seq_id, tokens, adapters,
                              ffi.string(native.space).decode(errors="replace"))

    @ffi.def_extern()
    def edgekv_py_prefix_ready(_user, prompt, n_have, alone):
        try:
            return _keeps.ready(tokens_of(prompt), n_have, bool(alone)) if _keeps else 1
        except Exception:
            log.exception("kept prefixes could not be fetched")
            return 1

    @ffi.def_extern()
    def edgekv_py_prefix_leave(_user, seq_id):
        try:
            if _keeps:
                _keeps.leave(seq_id)
        except Exception:
            log.exception("kept prefixes could not be left")

    @ffi.def_extern()
    def edgekv_py_prefix_begin(_user, prompt, n_have, out):
        try:
            found = _keeps.begin(tokens_of(prompt), n_have) if _keeps else PrefixSources()
            out.ram, out.disk, out.remote, out.comes = found.ram, found.disk, found.remote, found.comes
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

    @ffi.def_extern()
    def edgekv_py_prefix_start(_user):
        try:
            if _keeps:
                _keeps.start()
            return 1
        except Exception:
            log.exception("kept prefixes could not be loaded while the rest is computed")
            return 0

    @ffi.def_extern()
    def edgekv_py_prefix_settle(_user, out):
        try:
            position, found = _keeps.settle() if _keeps else (-1, PrefixSources())
            out.ram, out.disk, out.remote = found.ram, found.disk, found.remote
            return position
        except Exception:
            log.exception("kept prefixes could not be loaded")
            return 0  # nothing of the sequence is to be trusted

    _defined = True
