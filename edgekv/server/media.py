"""Images and sound in prompts: the numbers that represent them in the chains of a store."""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from edgekv._native.prefix_callbacks import Medium, SequenceTokens
from edgekv.common.errors import ModelError
from edgekv.prefix_cache.digests import Digesting

log = logging.getLogger("edgekv")

_NO_TOKEN = 1 << 31
"""Set in each number, which makes it negative; no token of a vocabulary is negative."""


class Media:
    """Numbers the tokens of media for all contexts of a server. On the decoding thread, or while nothing decodes."""

    def __init__(self) -> None:
        self._projector, self._refused = "", False
        self._digesting: Digesting | None = None

    def expect(self, projector: str) -> None:
        """The file that makes embeddings; waits for its digest. Not for the decoding thread."""
        self._projector, self._digesting = projector, Digesting(Path(projector))
        self._digesting.wait()

    def numbered(self, tokens: SequenceTokens) -> SequenceTokens:
        """The tokens, with numbers for those of media; they end before the first medium until its projector's digest is known. They stay valid."""
        if not tokens.media:
            return tokens
        digest = self._digest()
        n = tokens.media[0].first if digest is None else len(tokens.tokens)
        numbers, at = tokens.tokens[:n].copy(), None if tokens.at is None else tokens.at[:, :n].copy()
        media = tuple(medium for medium in tokens.media if medium.first < n)
        for medium in media:
            assert digest is not None, "else the tokens end before it"
            numbers[medium.first : medium.first + medium.n] = media_numbers(digest, medium)[: n - medium.first]
        return replace(tokens, tokens=numbers, media=media, at=at)

    def _digest(self) -> bytes | None:
        """The projector's digest; None: not ready, or impossible, which the log says once."""
        if self._refused or self._digesting is None or not self._digesting.done:
            return None
        try:
            if self._digesting.unchanged:
                return self._digesting.digest
            why = f"{self._projector} changed after it was loaded; start again"
        except ModelError as error:
            why = str(error)
        self._refused = True
        log.warning("prompts are not kept beyond their first image or sound: %s", why)
        return None


def media_numbers(projector: bytes, medium: Medium) -> np.ndarray:
    """int32 [n], all below 0: 31 bits for each token, from the digest of the projector's files and the whole medium. So an image
    that differs anywhere differs in all tokens, as their rows do if they attend later tokens."""
    digest = hashlib.shake_256(b"edgekv-medium")
    for piece in (projector, medium.id.encode(), medium.n.to_bytes(8, "little")):
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return (np.frombuffer(digest.digest(4 * medium.n), "<u4") | np.uint32(_NO_TOKEN)).astype(np.uint32).view(np.int32)


def whole_media(media: Sequence[Medium], n: int) -> int:
    """The largest number of tokens, at most `n`, that does not end within a medium."""
    return next((medium.first for medium in media if medium.first < n < medium.first + medium.n), n)
