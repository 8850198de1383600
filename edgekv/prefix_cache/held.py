"""Blocks whose rows lie in a slot: they are copied when the slot needs the cells, and not before."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from edgekv.prefix_cache.blocks import Block, Link

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from edgekv.prefix_cache.identity import RowLayout


class HeldRows(Protocol):
    """Rows of a block in cells that stay as they are until `release`. From any thread, one at a time."""

    needed: Callable[..., object] | None
    """Is called when the cells are needed, and is to release them soon. It may get time.monotonic() until which it may wait for room."""

    def read(self, layers: range, n_bytes: int) -> np.ndarray:
        """A copy of those of some layers, uint8 [n_bytes]."""

    def release(self) -> None: ...


class HeldBlock:
    """A block of RAM whose rows lie in a slot, and later in RAM, or nowhere (`Ram.take_out`)."""

    def __init__(self, link: Link, tokens: np.ndarray, rows: HeldRows, layout: RowLayout, may_round: bool):
        self.link, self.tokens, self.layout, self.may_round = link, tokens, layout, may_round
        self.lock = threading.Lock()
        """Of the following. Take it before the store's."""
        self.rows: HeldRows | None = rows
        self.payload: np.ndarray | None = None

    @property
    def n_bytes(self) -> int:
        """In RAM: none of what lies in a slot."""
        return 0 if self.payload is None else self.payload.nbytes + self.tokens.nbytes

    @property
    def n_bytes_out(self) -> int:
        """In RAM, once they are copied."""
        return self.layout.block_bytes(self.link.n) + self.tokens.nbytes

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
