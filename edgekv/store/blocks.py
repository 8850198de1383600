"""Blocks of a prefix, and the keys that chain them."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Link:
    """Where a block stands in its chain, without its rows."""

    key: bytes
    parent: bytes
    reading: Reading
    n: int
    """Tokens of the block, 1 to BLOCK_TOKENS."""


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


def child_link(parent: bytes, reading: Reading, tokens: np.ndarray) -> Link:
    """The link of the block with `tokens` (int32 [n]) that follows `parent`."""
    digest = hashlib.blake2b(parent, digest_size=KEY_BYTES, person=b"edgekv-block")
    digest.update(bytes([reading]))
    digest.update(tokens.astype("<i4").tobytes())
    return Link(digest.digest(), parent, reading, len(tokens))


def n_common(a: np.ndarray, b: np.ndarray) -> int:
    """How many tokens two sequences have in common from their beginning."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
