"""The answers of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from edgekv.common.enums import MissReason
from edgekv.prefix_cache.blocks import KeptBlock, Link, Reading
from edgekv.prefix_cache.coming import ComingBlock


class BlockPiece(Struct, frozen=True, eq=False):
    """Rows of one block that continue what is in place."""

    first: int
    """Position of the first token that is used."""
    n: int
    """Tokens that are used."""
    skip: int
    """Rows of the block before `first`."""
    n_block: int
    """Tokens of the block: the payload is laid out for so many (RowLayout)."""
    reading: Reading
    source: str
    """ram, disk or remote."""
    read: Callable[[range], np.ndarray | None]
    """Waits for the block's rows of some layers: uint8 [bytes], read-only; None if they cannot be used."""
    block: KeptBlock | ComingBlock

    @property
    def coming(self) -> bool:
        """Whether the rows still have to come into memory."""
        return isinstance(self.block, ComingBlock) and not self.block.fetched


def pieces_up_to(pieces: Sequence[BlockPiece], n: int) -> tuple[BlockPiece, ...]:
    """The part of the pieces that covers the first n tokens."""
    return tuple(replace(piece, n=min(piece.n, n - piece.first)) for piece in pieces if piece.first < n)


def _loading_s(block: KeptBlock | ComingBlock) -> float:
    """Seconds until a block is in memory, by the measured rate of its place."""
    return block.rate.takes_s(block.n_bytes) if isinstance(block, ComingBlock) and not block.fetched else 0.0


class Miss(NamedTuple):
    """Why the tokens from `at` on were not found."""

    reason: MissReason
    at: int


class Holds(Struct, eq=False):
    """Protects blocks from eviction until their rows are in place."""

    keys: list[bytes] = field(default_factory=list)
    """Of blocks in RAM."""
    n_bytes: int = 0
    """Room in RAM for blocks that will stay there."""


class KeptSnapshot(Struct, frozen=True, eq=False):
    """A sequence's data besides rows, after exactly `position` tokens."""

    position: int
    source: str
    """ram, disk or remote."""
    block: KeptBlock | ComingBlock

    @property
    def link(self) -> Link:
        return self.block.link

    def read(self) -> np.ndarray | None:
        """Its bytes, uint8 [bytes], which are read and verified by the first call; None if they cannot be used."""
        if isinstance(self.block, ComingBlock):
            if self.block.payload is None:
                self.block.stay()
            if not self.block.fetch(None):
                return None
        return self.block.payload


class PrefixHit(Struct, frozen=True):
    """The rows that a store has of a prompt's beginning."""

    pieces: tuple[BlockPiece, ...] = ()
    """In order, without gaps, from `n_have` on."""
    chain: tuple[Link, ...] = ()
    """Every block that was found, from the root on."""
    holds: Holds = field(default_factory=Holds)
    snapshot: KeptSnapshot | None = None
    """For a model that keeps more than rows: the pieces end at the snapshot, and all of them are useless without it."""
    missed: Miss | None = None
    """Why no more was found; None: all was."""

    def cut(self, n: int, reason: MissReason) -> PrefixHit:
        """The first n pieces, where the next cannot be used for a reason."""
        at = self.pieces[n].first if n < len(self.pieces) else self.reaches
        return replace(self.first_pieces(n), missed=Miss(reason, at))

    def first_pieces(self, n: int) -> PrefixHit:
        """The first n pieces; no snapshot, and so no piece, if that leaves out rows before the snapshot."""
        if self.snapshot is not None and n < len(self.pieces):
            return replace(self, pieces=(), snapshot=None)
        return replace(self, pieces=self.pieces[:n])

    def worth(self, reading_s: Callable[[int, int], float]) -> int:
        """The number of pieces, from the first, to load, so that loading them and computing the rest takes the least time: by the places' measured
        rates, and by `reading_s(first, n)`, the seconds to compute n tokens behind the first `first`. All pieces where that is 0, unknown. A piece
        in RAM takes no time. A place that was slow long ago is tried again, with one piece."""
        blocks = [piece.block for piece in self.pieces] if self.snapshot is None else [self.snapshot.block, *(piece.block for piece in self.pieces)]
        if not any(map(_loading_s, blocks)):
            return len(self.pieces)
        reading = [reading_s(piece.first, piece.n) for piece in self.pieces]
        if not all(seconds > 0 for seconds in reading):
            return len(self.pieces)
        # seconds, of loading so many pieces and not computing them
        costs = [0.0 if self.snapshot is None else _loading_s(self.snapshot.block)]
        for piece, seconds in zip(self.pieces, reading):
            costs.append(costs[-1] + _loading_s(piece.block) - seconds)
        if self.snapshot is not None:  # its rows come whole or not at all
            return len(self.pieces) if costs[-1] <= 0 else 0
        best = max(range(len(costs)), key=lambda i: (-costs[i], i))
        slow = self.pieces[best].block if best < len(self.pieces) else None
        return best + (isinstance(slow, ComingBlock) and slow.rate.stale)

    @property
    def n_tokens(self) -> int:
        return sum(piece.n for piece in self.pieces)

    @property
    def end(self) -> int:
        """Position behind the last token; 0 if there is none."""
        return self.pieces[-1].first + self.pieces[-1].n if self.pieces else 0

    @property
    def reaches(self) -> int:
        """The position at which a sequence continues with this hit; 0: the hit is empty."""
        return self.end if self.snapshot is None else self.snapshot.position

    def behind(self, n_have: int) -> PrefixHit:
        """The part that continues the first n_have tokens; no piece if none continues them."""
        rest = [piece for piece in self.pieces if piece.first + piece.n > n_have]
        if rest and rest[0].first < n_have:
            n_cut = n_have - rest[0].first
            rest[0] = replace(rest[0], first=n_have, n=rest[0].n - n_cut, skip=rest[0].skip + n_cut)
        follows = bool(rest) and rest[0].first == n_have
        whole = self.snapshot is not None and (follows or self.snapshot.position <= n_have)
        return replace(self, pieces=tuple(rest) if follows else (), snapshot=self.snapshot if whole else None)


class Saved(Struct, frozen=True):
    """Counts of tokens, each from the beginning of the conversation."""

    n_known: int = 0
    """Tokens that the store had before."""
    n_new: int = 0
    """Tokens that were read and kept now."""
    n_left_out: int = 0
    """Tokens that RAM had no room for, because the writer lagged behind."""
    chain: tuple[Link, ...] = ()
    """The links of all kept blocks, from the root on."""


class PlaceStats(Struct):
    """Counts of one place since the store was opened; n_blocks and n_bytes as they are now, if the place knows them."""

    n_blocks: int = 0
    n_bytes: int = 0
    hit_tokens: int = 0
    n_written: int = 0
    n_written_bytes: int = 0
    n_evicted: int = 0
    n_refused: int = 0
    """Damaged, truncated, foreign or of another version."""
    n_errors: int = 0
    """Times that the place could not be used: full, read-only, gone, unreachable, slow."""


class StoreStats(Struct):
    """Counts since the store opened, and current bytes."""

    ram: PlaceStats = field(default_factory=PlaceStats)
    disk: PlaceStats = field(default_factory=PlaceStats)
    remote: PlaceStats = field(default_factory=PlaceStats)
    n_unwritten: int = 0
    """Blocks waiting for the writer."""
    n_dropped: int = 0
    """Blocks that RAM had no room for before they were written."""
    n_in_slots: int = 0
    """Blocks whose rows lie in slots now, and not in RAM; they count nowhere else."""
