"""Whose rows the server's contexts hold."""

from __future__ import annotations

import logging
import struct
import threading
from concurrent.futures import Future, wait
from pathlib import Path
from weakref import WeakKeyDictionary

from edgekv.errors import ModelError, NativeError
from edgekv.live.runtime import Runtime
from edgekv.live.tokens import Tokens
from edgekv.store.digests import digest_of_model, stamps_of_model
from edgekv.store.identity import ModelIdentity, RowLayout, fingerprint

log = logging.getLogger("edgekv")

LONG_S = 2.0
"""What a start may take without a word."""

Adapters = tuple[tuple[int, float], ...]
"""LoRA adapters: the address of each, which lives as long as its context, and its scale."""


class Identities:
    """Of the contexts of one model. A thread computes the digest of its files from the beginning on: llama.cpp reads the same bytes then."""

    def __init__(self, model: Path):
        self._model = model
        self._digest: Future[tuple[bytes, tuple]] = Future()
        self._known: WeakKeyDictionary[Runtime, Built | None] = WeakKeyDictionary()
        threading.Thread(target=self._compute, name="edgekv-digest", daemon=True).start()

    def wait(self) -> None:
        """Until the digest is there; the log says so where that takes long. Not on the decoding thread."""
        if not wait([self._digest], LONG_S).done:
            log.warning("all of %s is read once, to know whose prefixes are kept; the next start knows it", self._model)
            wait([self._digest])

    def of(self, runtime: Runtime) -> Built | None:
        """What a context was built with; None while the digest is not there, and for good where the context keeps more of its tokens than rows,
        or where it is not known what was loaded: the log tells that once. On the decoding thread, or while nothing decodes."""
        if not self._digest.done():
            return None
        if runtime not in self._known:
            try:
                self._known[runtime] = Built(runtime.tokens, self._files(), self._model.stem)
            except (NativeError, ModelError) as error:
                log.warning("prefixes are not kept: %s", error)
                self._known[runtime] = None
        return self._known[runtime]

    def _compute(self) -> None:
        try:
            stamps = stamps_of_model(self._model)
            self._digest.set_result((digest_of_model(self._model), stamps))
        except BaseException as error:  # raised where somebody asks for it
            self._digest.set_exception(error)

    def _files(self) -> bytes:
        """What a context was loaded from just now."""
        digest, stamps = self._digest.result()
        if stamps_of_model(self._model) == stamps:
            return digest
        if not self._known:
            raise ModelError(f"{self._model} changed while it was loaded; start again")
        return digest_of_model(self._model)  # a server that slept has loaded it again


class Built:
    """What one context was built with, and which adapters it computes with."""

    def __init__(self, tokens: Tokens, files: bytes, name: str):
        """Raises NativeError where the context keeps more of its tokens than rows."""
        self._tokens = tokens
        self.identity = ModelIdentity(fingerprint(files, tokens.depends_on()), RowLayout(*tokens.row_bytes()), name)
        self._adapters: dict[int, bytes] = {}

    def named(self, adapters: Adapters) -> str:
        """Adapters by their content and scales; their order counts for nothing, and none are nothing."""
        for address, _ in adapters:
            if address not in self._adapters:
                self._adapters[address] = self._tokens.depends_on(address)
        return " ".join(sorted(f"{self._adapters[address].hex()}:{struct.pack('<f', scale).hex()}" for address, scale in adapters))
