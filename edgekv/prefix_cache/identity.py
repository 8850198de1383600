"""A model's identity: everything but the tokens that K and V depend on. It tells the stored rows that fit a model, and their size."""

import hashlib
from functools import lru_cache

import numpy as np
from msgspec import Struct

ROOT_BYTES = 4
"""The beginning that the roots of all chains of an identity have in common."""


class RowLayout(Struct, frozen=True):
    """Bytes of one token's row in each layer: of K, and of V.

    The payload of a block of n tokens is, layer by layer, K rows uint8 [n, k_bytes[l]] and then V rows uint8 [n, v_bytes[l]],
    without gaps.
    """

    k_bytes: tuple[int, ...]
    v_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.k_bytes) != len(self.v_bytes):
            raise ValueError(f"{len(self.k_bytes)} layers have K rows and {len(self.v_bytes)} have V rows")

    @property
    def n_layers(self) -> int:
        return len(self.k_bytes)

    def token_bytes(self) -> int:
        return sum(self.k_bytes) + sum(self.v_bytes)

    def block_bytes(self, n_tokens: int) -> int:
        return n_tokens * self.token_bytes()

    def layer_starts(self, n_tokens: int) -> np.ndarray:
        """The offsets of each layer in the payload of `n_tokens`, and of the end: int64 [layer + 1], in bytes, read-only."""
        return _layer_starts(self, n_tokens)


@lru_cache(16)  # every read of some layers of a block asks
def _layer_starts(layout: RowLayout, n_tokens: int) -> np.ndarray:
    sizes = (np.array(layout.k_bytes, np.int64) + np.array(layout.v_bytes, np.int64)) * n_tokens
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    starts.flags.writeable = False
    return starts


class SnapshotLayout(Struct, frozen=True):
    """A snapshot's payload, read as a block of one layer: so many bytes, whatever the number of its tokens."""

    n_bytes: int
    n_layers = 1

    def block_bytes(self, n_tokens: int) -> int:
        return self.n_bytes

    def layer_starts(self, n_tokens: int) -> np.ndarray:
        return np.array([0, self.n_bytes], np.int64)


PayloadLayout = RowLayout | SnapshotLayout


class ModelIdentity(Struct, frozen=True):
    """Rows of one identity are never used for another."""

    fingerprint: bytes
    """Digest of everything but the tokens that K and V of all requests depend on: the model's files, and the context as it was built."""
    layout: RowLayout
    name: str
    """The model's name, for people."""
    in_f16: bool = False
    """All rows are numbers in f16, which a codec can round."""

    def root_key(self) -> bytes:
        """The name of this identity's folder, 16 bytes; also the parent of a conversation's first block if there is no other."""
        layout = np.array([self.layout.k_bytes, self.layout.v_bytes], dtype="<i8").tobytes()
        return hashlib.blake2b(_framed(self.fingerprint, layout), digest_size=16, person=b"edgekv-root").digest()

    def chain_root(self, *of: str) -> bytes:
        """The parent of the first block of conversations that have nothing in common with those of other texts, 16 bytes; where all texts are
        empty the identity's own. It begins like that, which tells it from the key of a block."""
        root = self.root_key()
        if not any(of):
            return root
        texts = _framed(root, *(text.encode() for text in of))
        return root[:ROOT_BYTES] + hashlib.blake2b(texts, digest_size=16 - ROOT_BYTES, person=b"edgekv-chain").digest()


def begins_chain(root: bytes, parent: bytes) -> bool:
    """Whether a block with this parent is the first of its conversation; `root` is that of the model identity."""
    return parent[:ROOT_BYTES] == root[:ROOT_BYTES]


def fingerprint(*pieces: bytes) -> bytes:
    """16 bytes that change with any of the pieces, such as the digest of the model's files and what the context was built with."""
    return hashlib.blake2b(_framed(*pieces), digest_size=16, person=b"edgekv-rows").digest()


def _framed(*pieces: bytes) -> bytes:
    """Each piece after its length, so that different lists never give the same bytes."""
    return b"".join(len(piece).to_bytes(8, "little") + piece for piece in pieces)
