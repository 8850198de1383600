"""Blocks and snapshots that are known but not loaded: their rows are read layer by layer, when they are needed, a snapshot at once."""

import errno
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import Struct

from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Link, most_in_flight
from edgekv.prefix_cache.files import first_bytes, open_file
from edgekv.prefix_cache.format import BlockHeader, Refused, decode_header, read_layers
from edgekv.prefix_cache.identity import PayloadLayout, RowLayout
from edgekv.prefix_cache.place_rates import Rate

GROUP_BYTES = 2 << 20
"""Bytes of a block that are read at once, roughly."""


class InFlight:
    """Bounds the memory of rows under way. Thread-safe."""

    def __init__(self, layout: RowLayout):
        self.most_bytes = most_in_flight(layout.block_bytes(BLOCK_TOKENS))
        self.n_bytes = 0
        """Now."""
        self._freed = threading.Condition()

    def array(self, n_bytes: int) -> np.ndarray:
        """Room for rows, uint8 [n_bytes]; waits until there is any. It counts until nothing refers to it."""
        with self._freed:
            self._freed.wait_for(lambda: self.n_bytes == 0 or self.n_bytes + n_bytes <= self.most_bytes)
            self.n_bytes += n_bytes
        array = np.empty(n_bytes, np.uint8)
        weakref.finalize(array, self._free, n_bytes)
        return array

    def _free(self, n_bytes: int) -> None:
        with self._freed:
            self.n_bytes -= n_bytes
            self._freed.notify_all()


class ComingBlock:
    """A block whose rows are not in memory yet. `fill` reads and verifies those of some layers into uint8 [bytes of these layers]; False: they cannot
    be used, and the block's place has logged why. `rate`: of the place."""

    def __init__(self, link: Link, tokens: np.ndarray, layout: PayloadLayout, fill: Callable[[range, np.ndarray], bool], rate: Rate):
        self.link, self.tokens, self.layout, self._fill, self.rate = link, tokens, layout, fill, rate
        self.payload: np.ndarray | None = None
        """The buffer of loaded rows, uint8 [layout.block_bytes(n)]; None: they do not stay."""
        self.fetched = False
        """All of them are there."""

    @property
    def n_bytes(self) -> int:
        """The block with its rows."""
        return self.layout.block_bytes(self.link.n) + self.tokens.nbytes

    def stay(self) -> None:
        """Keep the rows that are read after this."""
        self.payload = np.empty(self.layout.block_bytes(self.link.n), np.uint8)

    def pass_by(self) -> bool:
        """Undo `stay`. False: they were not to stay, or were read already."""
        if self.payload is None or self.fetched:
            return False
        self.payload = None
        return True

    def read(self, layers: range, flight: InFlight | None) -> np.ndarray | None:
        """The rows of some layers, verified, uint8 [bytes]; None if they cannot be used. On the calling thread. `flight`: None if they stay."""
        starts = self.layout.layer_starts(self.link.n)
        first, end = int(starts[layers.start]), int(starts[layers.stop])
        if self.payload is not None:
            rows = self.payload[first:end]
        else:
            assert flight is not None, "the rows do not stay"
            rows = flight.array(end - first)
        if self.fetched:
            return rows
        began = time.monotonic()
        good = self._fill(layers, rows)
        self.rate.seen(len(rows) if good else 0, time.monotonic() - began)
        return rows if good else None

    def fetch(self, flight: InFlight | None) -> bool:
        """Read all into its buffer, some layers at a time; whether it can be used."""
        self.fetched = self.fetched or all(self.read(layers, flight) is not None for layers in layer_groups(self.layout, self.link.n))
        return self.fetched


class BlockReader(Struct, frozen=True):
    """Reads rows of a file whose header was verified. `rate`: of the place."""

    path: Path
    first: bytes
    """The bytes of the file before the rows. They hold the rows' checksums, so they differ once the file was evicted and written again. The file is
    not kept open: a long conversation has more files than a process may open."""
    header: BlockHeader
    rate: Rate

    def read(self, layers: range, out: np.ndarray) -> np.ndarray:
        """Fill `out`, and return it. Raises Refused, OSError; FileNotFoundError also if another file has replaced it."""
        read_layers(self.header, layers, out, self._read)
        return out

    def _read(self, start: int, out: np.ndarray) -> bool:
        began = time.monotonic()
        with open_file(self.path) as file:
            if os.pread(file.fileno(), len(self.first), 0) != self.first:
                raise FileNotFoundError(errno.ENOENT, "it was evicted, and other rows were written in its place", str(self.path))
            at = 0
            while at < len(out):
                n = os.preadv(file.fileno(), [out.data[at:]], start + at)
                if not n:
                    raise Refused("it is truncated", damaged=True)
                at += n
        self.rate.stored(at, time.monotonic() - began)
        return True


def open_block(path: Path, root: bytes, link: Link, layout: RowLayout | None, rate: Rate) -> BlockReader:
    """Raises Refused unless the file is that of this block and has room for all of its rows; OSError. `layout`: as in `BlockHeader.check`."""
    with open_file(path) as file:
        data, n_bytes = first_bytes(file), os.fstat(file.fileno()).st_size
    header = decode_header(data)
    header.check(root, link, layout, n_bytes)
    return BlockReader(path, data[: header.start], header, rate)


def layer_groups(layout: PayloadLayout, n_tokens: int) -> list[range]:
    """Layers to read together, in their order; each group has GROUP_BYTES or more in a block of n_tokens."""
    starts = layout.layer_starts(n_tokens)
    groups, first, n = [], 0, layout.n_layers
    for end in range(1, n + 1):
        if starts[end] - starts[first] >= GROUP_BYTES and starts[n] - starts[end] >= GROUP_BYTES or end == n:
            groups.append(range(first, end))
            first = end
    return groups
