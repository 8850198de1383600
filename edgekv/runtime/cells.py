"""KV cells seen from Python, in place.

Every array here is a view of llama.cpp's own memory. It is valid until its context is freed; a freed context's Runtime gives no new views.
Its contents are current while nothing decodes. They change with every decode, seq_rm, seq_cp, shift and state load: copy what should stay.
"""

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from edgekv._native import core, native_arrays, paging
from edgekv.common.errors import EdgeKVError

SPARSE_PROMPT, SAMPLED, EARLIER, ROUNDED, PARTIAL = 1, 2, 4, 8, 16
"""Bits of `StreamCells.labels`. SPARSE_PROMPT: a sparse prompt read the token. SAMPLED: a decode step that sampled read it. EARLIER: one of
both did, with settings that are no longer in force. ROUNDED: its rows came from a store that had rounded them. PARTIAL: some layers gave its
rows back (mode evict); there they are zeros, and the token cannot be saved."""


def sequences_of(bits: np.ndarray) -> list[int]:
    """The sequences whose bits are set, uint64 [word], in their order."""
    found: list[int] = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
    return found


class StreamCells(Struct, frozen=True):
    """The cells of one stream: a unified cache has one for all sequences, others have one for each."""

    positions: np.ndarray
    """int32 [cell]: position of the token; -1: the cell is empty."""
    sequence_bits: np.ndarray
    """uint64 [cell, word]: bit s is set if the cell belongs to sequence s."""
    changed: np.ndarray
    """uint64 [cell]: clock value at the last change of the cell's position, sequences or K/V data."""
    now: int
    """Clock value of this view."""
    n_used: int
    used_end: int
    """The last used cell + 1."""
    labels: np.ndarray
    """uint8 [cell]: bits SPARSE_PROMPT, SAMPLED, EARLIER, ROUNDED and PARTIAL; 0: the token was read exactly, and is whole. With another label than
    PARTIAL a cell holds approximate values, in the first layer only if ROUNDED. Copies in other streams keep the labels; saved states keep
    SPARSE_PROMPT alone."""

    @property
    def read_sparsely(self) -> np.ndarray:
        """bool [cell], a copy: a sparse prompt read the token (`SelectionOptions.prompts`)."""
        return (self.labels & SPARSE_PROMPT) != 0

    def sequences(self, cell: int) -> list[int]:
        """The sequences that the cell belongs to, in their order."""
        return sequences_of(self.sequence_bits[cell])

    def in_sequence(self, seq_id: int) -> np.ndarray:
        """bool [cell]: the cell belongs to the sequence."""
        return (self.sequence_bits[:, seq_id // 64] >> np.uint64(seq_id % 64) & np.uint64(1)).astype(bool)

    def changed_since(self, time: int) -> np.ndarray:
        """int [n]: the cells that changed after `time`, an earlier `now`."""
        return np.flatnonzero(self.changed > np.uint64(time))


class Cells:
    """Cells and K/V rows of a context; made by its Runtime."""

    def __init__(self, handle: Callable[[], core.Handle]):
        self._handle = handle
        self._streams: dict[int, int] = {}  # by sequence, as long as the context lives

    @property
    def known(self) -> bool:
        """False: the context keeps only states, or a cache of a kind that EdgeKV does not know. Then nothing else here can be asked."""
        return self._stream(0) >= 0

    def _stream(self, seq_id: int) -> int:
        if seq_id not in self._streams:
            self._streams[seq_id] = core.stream_of(self._handle(), seq_id)
        return self._streams[seq_id]

    @property
    def n_stream(self) -> int:
        return native_arrays.cells(self._handle(), 0).n_stream

    @property
    def n_cells(self) -> int:
        """Cells of a stream: in mode evict fewer than the context's tokens, and more than the kept ones where layers keep different tokens."""
        return native_arrays.cells(self._handle(), 0).n_cells

    @property
    def closes_gaps(self) -> bool:
        """Mode evict: gaps that dropped tokens leave close (`EvictionOptions.positions`), so that a sequence may be longer than the model was
        trained for. False where keys cannot turn to other positions."""
        return core.limits(self._handle()).closes_gaps

    @property
    def gives_back(self) -> bool:
        """Mode evict: a layer gives the rows of the pages that it drops back to the system."""
        return core.limits(self._handle()).gives_back

    def dropped(self) -> np.ndarray | None:
        """Mode evict, uint8 [hooked layer, kv_head, page of all streams], in place; not zero: the head does not attend the page. None on a device."""
        return paging.page_arrays(self._handle()).dropped

    def stream(self, stream: int = 0) -> StreamCells:
        native = native_arrays.cells(self._handle(), stream)
        return StreamCells(native.positions, native.sequence_bits, native.changed, native.now, native.n_used, native.used_end,
                           native.labels)

    def stream_of(self, seq_id: int) -> int:
        """The stream that holds the cells of a sequence. Raises EdgeKVError if there is none."""
        stream = self._stream(seq_id)
        if stream < 0:
            raise EdgeKVError(f"sequence {seq_id} has no cells here: the context has no KV cache, or fewer sequences")
        return stream

    def keys(self, layer: int) -> np.ndarray:
        """K rows of a layer, in place: float16 [stream, cell, kv_head, head_dim]. A cache in q8_0 or
        q4_0 has `edgekv._native.native_arrays.Q8_0_BLOCK` or `Q4_0_BLOCK` [stream, cell, kv_head, head_dim / 32], of 32 values."""
        return native_arrays.rows(self._handle(), layer, value=False)

    def values(self, layer: int) -> np.ndarray:
        """V rows of a layer, like `keys`."""
        return native_arrays.rows(self._handle(), layer, value=True)
