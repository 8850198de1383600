"""The identity of each of the server's contexts: everything that its rows depend on."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from weakref import WeakKeyDictionary

from edgekv.common.errors import ModelError, NativeError
from edgekv.config import CacheOptions
from edgekv.prefix_cache.digests import Digesting, digest_of_model
from edgekv.prefix_cache.identity import ModelIdentity, RowLayout, fingerprint
from edgekv.runtime.runtime import Runtime
from edgekv.runtime.tokens import Tokens

log = logging.getLogger("edgekv")

LONG_S = 2.0
"""A start that takes longer says why."""

Adapters = tuple[tuple[int, float], ...]
"""LoRA adapters: (address, scale) of each; an adapter lives as long as its context."""


class Identities:
    """Identities of one model's contexts. A thread digests the model's files from the start on, while llama.cpp reads the same bytes."""

    def __init__(self, model: Path, in_f16: bool = False):
        """in_f16: where K and V are in f16, rows are K and V of heads and nothing else."""
        self._model, self._in_f16 = model, in_f16
        self._digest = Digesting(model)
        self._known: WeakKeyDictionary[Runtime, Built | None] = WeakKeyDictionary()

    def wait(self) -> None:
        """Wait for the digest; the log reports a long wait. Not for the decoding thread."""
        if not self._digest.wait(LONG_S):
            log.warning("all of %s is read once, to identify the model of kept prefixes; the next start knows it", self._model)
            self._digest.wait()

    def of(self, runtime: Runtime) -> Built | None:
        """A context's files and settings; None until the digest is ready. It stays None for a context whose kept data cannot all be put back, and
        if the loaded files are unknown, which the log says once. For the decoding thread, or while nothing decodes."""
        if not self._digest.done:
            return None
        if runtime not in self._known:
            try:
                cache = runtime.options.cache
                self._known[runtime] = Built(runtime.tokens, self._files(), named(self._model, cache), self._in_f16 and cache.is_f16)
            except (NativeError, ModelError) as error:
                log.warning("prefixes are not kept: %s", error)
                self._known[runtime] = None
        return self._known[runtime]

    def _files(self) -> bytes:
        """The digest of the files from which a context was just loaded."""
        digest = self._digest.digest
        if self._digest.unchanged:
            return digest
        if not self._known:
            raise ModelError(f"{self._model} changed while it was loaded; start again")
        return digest_of_model(self._model)  # a server that slept loads the model again


def named(model: Path, cache: CacheOptions) -> str:
    """What people call rows: by their model, and by the types of K and V if they are not f16."""
    return model.stem if cache.is_f16 else f"{model.stem} ({cache.types_text})"


class Built:
    """The files and settings that built one context, and the adapters that it computes with."""

    def __init__(self, tokens: Tokens, files: bytes, name: str, in_f16: bool = False):
        """Raises NativeError if the context keeps data of its tokens that cannot be put back."""
        self._tokens = tokens
        self.identity = ModelIdentity(fingerprint(files, tokens.depends_on()), RowLayout(*tokens.row_bytes()), name, in_f16)
        self._adapters: dict[int, bytes] = {}

    def named(self, adapters: Adapters) -> str:
        """A name for adapters by content and scale, in any order; empty for none."""
        for address, _ in adapters:
            if address not in self._adapters:
                self._adapters[address] = self._tokens.depends_on(address)
        return " ".join(sorted(f"{self._adapters[address].hex()}:{struct.pack('<f', scale).hex()}" for address, scale in adapters))
