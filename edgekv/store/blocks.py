"""Blocks of a prefix, and the keys that chain them."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

BLOCK_TOKENS = 256
"""Of a block that others can follow. One with fewer, a tail, ends its chain."""

KEY_BYTES = 16


class Reading(enum.IntEnum):
    """What the tokens of a block attended when their K and V were computed. A block is never below its parent."""

    EXACT = 0
    SAMPLED = 1
    """Generated in mode sparse: each token attended a weighted sample."""
    SPARSE = 2
    """Read as a prompt that attended blocks of keys, chosen by sketches."""


class ReadWith(NamedTuple):
    """With what settings tokens were read that were not read exactly, by their Reading: digests of at most 32 bytes. What was read with others
    is not known to be as good, and counts as not there. Nothing where there is nothing to tell apart."""

    exact: bytes = b""
    sampled: bytes = b""
    sparse: bytes = b""


NOTHING_SAID = ReadWith()


@dataclass(frozen=True)
class Link:
    """Where a block stands in its chain, without its rows."""

    key: bytes
    parent: bytes
    reading: Reading
    n: int
    """Tokens of the block, 1 to BLOCK_TOKENS."""
    read_with: bytes = field(default=b"", compare=False)
    """Of ReadWith, where it is known: the key depends on it, and a file's name does not say it."""


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of K and V of the tokens of a link. Nobody writes into a block."""

    link: Link
    tokens: np.ndarray
    """int32 [n]."""
    payload: np.ndarray
    """uint8 [layout.block_bytes(n)]."""

    @property
    def n_bytes(self) -> int:
        return self.payload.nbytes + self.tokens.nbytes


def child_link(parent: bytes, reading: Reading, tokens: np.ndarray, read_with: bytes = b"") -> Link:
    """The link of the block with `tokens` (int32 [n]) that follows `parent`. `read_with`: of ReadWith, by `reading`."""
    digest = hashlib.blake2b(parent, digest_size=KEY_BYTES, person=b"edgekv-block")
    digest.update(bytes([reading, len(read_with)]) + read_with)
    digest.update(tokens.astype("<i4").tobytes())
    return Link(digest.digest(), parent, reading, len(tokens), read_with)


def n_common(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens two sequences have in common from their beginning."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
