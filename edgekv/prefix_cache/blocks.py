"""Blocks of a prefix, and the keys that chain them."""

from __future__ import annotations

import enum
import hashlib
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Struct

if TYPE_CHECKING:  # a plan needs the sizes, and no array
    from collections.abc import Callable, Mapping

    import numpy as np

    from edgekv.prefix_cache.identity import PayloadLayout

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


class Block(Struct, frozen=True, eq=False):
    """Rows of K and V for the tokens of a link, or the snapshot after them. A block never changes."""

    link: Link
    tokens: np.ndarray
    """int32 [n]."""
    payload: np.ndarray
    """uint8 [layout.block_bytes(n)]; of a snapshot, as many bytes as it has."""
    may_round: bool = False
    """Whether places may keep a rounded copy of it."""


class HeldRows(Protocol):
    """Rows of a block in cells that stay as they are until `release`. From any thread, one at a time."""

    needed: Callable[..., object] | None
    """Is called when the cells are needed, and is to release them soon; or when the rows were parked. It may get time.monotonic() when a wait for room
    began: that of all rows which leave together."""
    parked: bool
    """The rows have left their cells, with their memory, and stay until `release`."""

    def read(self, layers: range, n_bytes: int) -> np.ndarray:
        """A copy of those of some layers, uint8 [n_bytes]."""

    def release(self) -> None: ...


class KeptBlock:
    """A block or snapshot that RAM lists. It has a `payload`, or `rows`, which lie in a slot or are parked beside it; or nothing, where RAM had no room."""

    def __init__(self, link: Link, tokens: np.ndarray, layout: PayloadLayout, payload: np.ndarray | None, rows: HeldRows | None = None,
                 may_round: bool = False):
        """`payload` belongs to the block from now on."""
        self.link, self.tokens, self.layout, self.may_round = link, tokens, layout, may_round
        self.lock = threading.Lock()
        """Of the following. Take it before the store's."""
        self.rows, self.payload = rows, read_only(payload)
        self.n_bytes = 0 if payload is None else payload.nbytes + tokens.nbytes
        """In RAM: none of what lies in a slot. With the store's lock held."""

    def read(self, layers: range) -> np.ndarray | None:
        """The rows of some layers: uint8 [bytes], read-only or a copy; None if the slot took the cells, and RAM had no room."""
        starts = self.layout.layer_starts(self.link.n)
        first, end = int(starts[layers.start]), int(starts[layers.stop])
        with self.lock:
            if self.payload is not None:
                return self.payload[first:end]
            return None if self.rows is None else self.rows.read(layers, end - first)

    def whole(self) -> Block | None:
        """With all rows, which live as long as the result where they lie in a slot."""
        rows = self.read(range(self.layout.n_layers))
        return None if rows is None else Block(self.link, self.tokens, rows, self.may_round)


def read_only(payload: np.ndarray | None) -> np.ndarray | None:
    """A view of it."""
    if payload is not None:
        payload = payload.view()
        payload.flags.writeable = False
    return payload


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


def line(key: bytes, parents: Mapping[bytes, bytes]) -> list[bytes]:
    """The keys of a chain from `key` back to the first block whose parent is known. No chain is a circle, but files may say so."""
    found: dict[bytes, None] = {}
    while key in parents and key not in found:
        found[key] = None
        key = parents[key]
    return list(found)


def n_common(a: np.ndarray, b: np.ndarray) -> int:
    """The length of the common prefix of two sequences."""
    n = min(len(a), len(b))
    differ = (a[:n] != b[:n]).nonzero()[0]
    return int(differ[0]) if len(differ) else n
