"""Blocks of a prefix, and the keys that chain them."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:  # a plan needs the sizes, and no array
    import numpy as np

BLOCK_TOKENS = 256
"""Tokens of a block that others can follow. A shorter block, a tail, ends its chain."""

KEY_BYTES = 16
LEAST_IN_FLIGHT = 16 << 20


def most_in_flight(block_bytes: int) -> int:
    """The most bytes of rows that are read and not yet in place, besides those that RAM keeps; `block_bytes`: of a whole block. Two blocks, so one
    is read while the other is used."""
    return max(LEAST_IN_FLIGHT, 2 * block_bytes)


class Reading(enum.IntEnum):
    """The tokens that a block's tokens attended when their K and V were computed. A block is never below its parent."""

    EXACT = 0
    ROUNDED = 1
    """Rows that a codec rounded, or that were computed behind such rows."""
    SAMPLED = 2
    """Generated in mode sparse: each token attended a weighted sample."""
    SPARSE = 3
    """Read as a prompt that attended blocks of keys, chosen by sketches."""


class ReadWith(NamedTuple):
    """The settings with which tokens were read that were not read exactly, by Reading: digests of at most 32 bytes. Rows read with other settings
    may be worse, and count as missing. Empty if there is nothing to tell apart."""

    rounded: bytes = b""
    sampled: bytes = b""
    sparse: bytes = b""
    takes_rounded: bool = False
    """Copies that the codec rounded will do."""

    def of(self, reading: Reading) -> bytes:
        return (b"", self.rounded, self.sampled, self.sparse)[reading]


NOTHING_SAID = ReadWith()


class Conversation(NamedTuple):
    """Tokens from a conversation's beginning, what else their keys depend on, and how long they are kept."""

    tokens: np.ndarray
    """int32 [n]."""
    root: bytes = b""
    """Of its chain (`ModelIdentity.chain_root`); empty: the identity's own."""
    read_with: ReadWith = NOTHING_SAID
    in_memory: bool = False
    """What the store lacks stays in RAM alone."""
    stays: tuple[tuple[int, float], ...] = ()
    """The first n tokens stay until a time, in seconds since 1970."""

    def same(self, other: Conversation) -> bool:
        return self.root == other.root and n_common(self.tokens, other.tokens) == len(self.tokens) == len(other.tokens)

    def has_more_of(self, other: Conversation, n_have: int) -> bool:
        """Whether both share at least one block after the first n_have tokens."""
        return self.root == other.root and n_common(self.tokens, other.tokens) >= n_have + BLOCK_TOKENS


@dataclass(frozen=True)
class Link:
    """A block's place in its chain, without its rows."""

    key: bytes
    parent: bytes
    reading: Reading
    n: int
    """Tokens of the block, 1 to BLOCK_TOKENS."""
    read_with: bytes = field(default=b"", compare=False)
    """The digest of ReadWith if it is known: the key depends on it, but a file's name does not contain it."""
    snapshot: bool = False
    """The payload is a snapshot: what a sequence keeps besides rows behind these tokens. Nothing follows it, and n may be 0."""
    rounded: bool = field(default=False, compare=False)
    """Of a block that is there: this copy was rounded by the codec. Of one that is asked for: a rounded copy will do. The key is that of the rows as they
    were computed."""

    @property
    def label(self) -> Reading:
        """How the rows of this copy came to be."""
        return max(self.reading, Reading.ROUNDED) if self.rounded else self.reading

    def copies(self) -> list[Link]:
        """The copies that will do for the block asked for, the better one first."""
        return [self.copy(rounded) for rounded in ((False, True) if self.rounded else (False,))]

    def copy(self, rounded: bool) -> Link:
        """The block's copy that a codec rounded, or did not."""
        return replace(self, rounded=rounded)

    def will_do(self, asked: Link) -> bool:
        """Whether this copy is as good as the block asked for needs."""
        return asked.rounded or not self.rounded


class Block(Struct, frozen=True, eq=False):
    """Rows of K and V for the tokens of a link, or the snapshot after them. A block never changes."""

    link: Link
    tokens: np.ndarray
    """int32 [n]."""
    payload: np.ndarray
    """uint8 [layout.block_bytes(n)]; of a snapshot, as many bytes as it has."""
    may_round: bool = False
    """Whether places may keep a rounded copy of it."""

    @property
    def n_bytes(self) -> int:
        return self.payload.nbytes + self.tokens.nbytes

    def whole(self) -> Block:
        return self


def child_link(parent: bytes, reading: Reading, tokens: np.ndarray, read_with: bytes = b"", rounded: bool = False) -> Link:
    """The link of the block with `tokens` (int32 [n]) that follows `parent`. `read_with`: of ReadWith, by `reading`."""
    return Link(_key(b"edgekv-block", parent, reading, tokens, read_with), parent, reading, len(tokens), read_with, rounded=rounded)


def snapshot_link(parent: bytes, reading: Reading, tokens: np.ndarray, read_with: bytes = b"") -> Link:
    """The link of the snapshot behind `tokens` (int32 [n], fewer than BLOCK_TOKENS), which follow the last whole block, `parent`."""
    return Link(_key(b"edgekv-snapshot", parent, reading, tokens, read_with), parent, reading, len(tokens), read_with, snapshot=True)


def _key(kind: bytes, parent: bytes, reading: Reading, tokens: np.ndarray, read_with: bytes) -> bytes:
    digest = hashlib.blake2b(parent, digest_size=KEY_BYTES, person=kind)
    digest.update(bytes([reading, len(read_with)]) + read_with)
    digest.update(tokens.astype("<i4").tobytes())
    return digest.digest()


def n_common(a: np.ndarray, b: np.ndarray) -> int:
    """The length of the common prefix of two sequences."""
    n = min(len(a), len(b))
    differ = (a[:n] != b[:n]).nonzero()[0]
    return int(differ[0]) if len(differ) else n
