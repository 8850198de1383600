"""KV cells seen from Python, in place.

Lifetime: every array below is a view of llama.cpp's own memory. It stays valid until its context is freed (then the Runtime is closed
and refuses new views; arrays taken before must not be read any more). Its contents are current whenever nothing is decoding, and
change with every decode, seq_rm, seq_cp, shift and state load: copy what should stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgekv._native import core
from edgekv.errors import EdgeKVError

SPARSE_PROMPT, SAMPLED, EARLIER = 1, 2, 4
"""Bits of `StreamCells.labels`: the token was read by a sparse prompt; by a decode step that sampled; one of both, with settings that are no
longer in force."""


@dataclass(frozen=True)
class StreamCells:
    """The cells of one stream (one for all sequences in a unified cache, otherwise one a sequence)."""

    positions: np.ndarray
    """int32 [cell]: position of the token, -1 where the cell is empty."""
    sequence_bits: np.ndarray
    """uint64 [cell, word]: bit s says that the cell belongs to sequence s."""
    changed: np.ndarray
    """uint64 [cell]: clock time of the cell's last change of position, sequences or K/V data."""
    now: int
    """Clock time of this view."""
    n_used: int
    used_end: int
    """The last used cell + 1."""
    labels: np.ndarray
    """uint8 [cell]: how the token was read, bits SPARSE_PROMPT, SAMPLED and EARLIER; 0: exactly. What a labelled cell holds in all layers but the
    first is approximate. Copies in other streams keep the labels, saved states those of sparse prompts."""

    @property
    def read_sparsely(self) -> np.ndarray:
        """bool [cell], a copy: the token was read by a sparse prompt (`SelectionOptions.prompts`)."""
        return (self.labels & SPARSE_PROMPT) != 0

    def sequences(self, cell: int) -> set[int]:
        """Sequence numbers the cell belongs to."""
        bits = self.sequence_bits[cell]
        return {64 * word + bit for word in range(len(bits)) for bit in range(64) if int(bits[word]) >> bit & 1}

    def in_sequence(self, seq_id: int) -> np.ndarray:
        """bool [cell]: the cell belongs to the sequence."""
        return (self.sequence_bits[:, seq_id // 64] >> np.uint64(seq_id % 64) & np.uint64(1)).astype(bool)

    def changed_since(self, time: int) -> np.ndarray:
        """int [n]: the cells that changed after `time` (a `now` seen earlier)."""
        return np.flatnonzero(self.changed > np.uint64(time))


class Cells:
    """Cells and K/V rows of a context; made by its Runtime."""

    def __init__(self, handle: Callable[[], core.Handle]):
        self._handle = handle

    @property
    def n_stream(self) -> int:
        return core.cells(self._handle(), 0).n_stream

    @property
    def n_cells(self) -> int:
        """Of a stream; in mode evict fewer than the context has tokens."""
        return core.cells(self._handle(), 0).n_cells

    def stream(self, stream: int = 0) -> StreamCells:
        native = core.cells(self._handle(), stream)
        return StreamCells(native.positions, native.sequence_bits, native.changed, native.now, native.n_used, native.used_end,
                           native.labels)

    def stream_of(self, seq_id: int) -> int:
        """The stream that holds the cells of a sequence."""
        stream = core.stream_of(self._handle(), seq_id)
        if stream < 0:
            raise EdgeKVError(f"sequence {seq_id} has no cells here: the context has no KV cache, or fewer sequences")
        return stream

    def keys(self, layer: int) -> np.ndarray:
        """K rows of a layer, in place: float16 [stream, cell, kv_head, head_dim], or for a q8_0 cache
        [stream, cell, kv_head, head_dim / 32] of `edgekv._native.core.Q8_0_BLOCK` (32 values = scale * codes)."""
        return core.rows(self._handle(), layer, value=False)

    def values(self, layer: int) -> np.ndarray:
        """V rows of a layer, like `keys`."""
        return core.rows(self._handle(), layer, value=True)
