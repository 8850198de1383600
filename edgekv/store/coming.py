"""Blocks whose rows come layer by layer: what they are is known, and the rows are read when they are asked for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgekv.store.blocks import Block, Link
from edgekv.store.files import first_bytes, open_file
from edgekv.store.format import Header, Refused, check_layers, decode_header
from edgekv.store.identity import RowLayout

GROUP_BYTES = 2 << 20
"""Of a block that are read at once, about."""


@dataclass(frozen=True, eq=False)
class ComingBlock(Block):
    """A block whose rows are not there yet; `payload` is filled by `read`."""

    read: Callable[[range], bool]
    """Reads and verifies the rows of some layers, on the calling thread. False: they cannot be used, and the block's place has said why."""


N_SAMPLES = 8
"""Of a file, to know whether it is in memory."""


@dataclass(frozen=True)
class BlockReader:
    """Reads rows of a file whose header was verified."""

    path: Path
    first: bytes
    """Of the file, all that stands before the rows: it names their checksums, so one that was evicted and written again is told from it. The
    file is not kept open: a long conversation has more of them than a process may have."""
    header: Header
    data: np.ndarray
    """uint8 [layout.block_bytes(n)]."""

    def cached(self) -> bool:
        """Whether the rows are in the system's memory, as far as samples tell: reading them then costs work and waits for no disk. False too
        where the system does not say. Raises OSError."""
        if not hasattr(os, "RWF_NOWAIT"):
            return False
        with open_file(self.path) as file:
            try:
                for at in np.linspace(self.header.start, self.header.n_bytes - 1, N_SAMPLES).astype(int).tolist():
                    os.preadv(file.fileno(), [bytearray(1)], at, os.RWF_NOWAIT)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL):
                    return False
                raise
        return True

    def read(self, layers: range) -> int:
        """Fills `data`; returns how many bytes were read. Raises Refused, OSError; FileNotFoundError also where the file is another one by now."""
        starts = self.header.layout.layer_starts(self.header.link.n)
        first, end = int(starts[layers.start]), int(starts[layers.stop])
        with open_file(self.path) as file:
            if os.pread(file.fileno(), len(self.first), 0) != self.first:
                raise FileNotFoundError(errno.ENOENT, "it was evicted, and other rows were written in its place", str(self.path))
            at = first
            while at < end:
                n = os.preadv(file.fileno(), [self.data.data[at:end]], self.header.start + at)
                if not n:
                    raise Refused("it is truncated", damaged=True)
                at += n
        check_layers(self.data, self.header, layers)
        return end - first


def open_block(path: Path, root: bytes, link: Link, layout: RowLayout) -> BlockReader:
    """Raises Refused unless the file is that of this block and has room for all of its rows; OSError."""
    with open_file(path) as file:
        data, n_bytes = first_bytes(file), os.fstat(file.fileno()).st_size
    header = decode_header(data)
    if header.root != root or header.link != link or header.layout != layout:
        raise Refused("it is another block than its name says", damaged=True)
    if n_bytes != header.n_bytes:
        raise Refused("it is truncated" if n_bytes < header.n_bytes else "it is longer than its rows", damaged=True)
    return BlockReader(path, data[: header.start], header, np.empty(layout.block_bytes(link.n), np.uint8))


def layer_groups(layout: RowLayout, n_tokens: int) -> list[range]:
    """Layers that are read together, in their order: as many as have GROUP_BYTES in a block of n_tokens."""
    starts = layout.layer_starts(n_tokens)
    groups, first, n = [], 0, layout.n_layers
    for end in range(1, n + 1):
        if starts[end] - starts[first] >= GROUP_BYTES and starts[n] - starts[end] >= GROUP_BYTES or end == n:
            groups.append(range(first, end))
            first = end
    return groups
