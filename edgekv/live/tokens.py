"""K and V of whole tokens of a context: taken out as blocks, and put back without computing them.

A block of n tokens is uint8: for each layer K rows [n, bytes] and then V rows [n, bytes], as the cache holds them. Where nothing else is said
everything here belongs to the thread that decodes, between two decodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from edgekv._native import core, device_calls, token_rows
from edgekv._native.token_rows import HeldTokens
from edgekv.live.cells import EARLIER, SAMPLED, Cells, StreamCells


class Tokens:
    """The tokens of a context's sequences; made by its Runtime."""

    def __init__(self, handle: Callable[[], core.Handle], cells: Cells):
        self._handle = handle
        self._cells = cells

    def row_bytes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bytes of a token's K row and V row, in each layer that keeps any. Raises NativeError where the context keeps more of its tokens
        than rows in one plain cache: sliding windows, recurrent states, compressed caches."""
        return token_rows.token_bytes(self._handle())

    def depends_on(self, adapter: int = 0) -> bytes:
        """16 bytes that stand for all that K and V of a token depend on besides the weights in the model's file and the tokens: how the
        context was really built. With the llama_adapter_lora at an address, at scale 1 and with its content; whichever is in force does not
        count. Raises as `row_bytes`. It reads all of the adapter."""
        digest = hashlib.blake2b(digest_size=16, person=b"edgekv-context")
        token_rows.describe(self._handle(), adapter, digest.update)
        return digest.digest()

    @property
    def on_device(self) -> bool:
        return device_calls.plane(self._handle()) is not None

    def cells_of(self, seq_id: int, n: int) -> np.ndarray:
        """uint32 [m]: the cells of positions 0 to m - 1 of a sequence, m as large as can be and at most n."""
        view = self._cells.stream(self._cells.stream_of(seq_id))
        mine = np.flatnonzero(view.in_sequence(seq_id) & (view.positions < n)).astype(np.uint32)
        mine = mine[np.argsort(view.positions[mine], kind="stable")]
        missing = np.flatnonzero(view.positions[mine] != np.arange(len(mine)))
        return mine[:missing[0]] if len(missing) else mine

    def labels(self, seq_id: int, cells: np.ndarray) -> np.ndarray:
        """uint8 [n], a copy: how the tokens in `cells` were read (`StreamCells.labels`)."""
        view: StreamCells = self._cells.stream(self._cells.stream_of(seq_id))
        return view.labels[cells]

    def settings_change(self, sampled: bool) -> None:
        """Tokens will be read with other settings from now on: those that were not read exactly are labelled EARLIER. `sampled`: all may have
        been sampled, because a device does not label its steps. Where the context has cells, and while nothing decodes."""
        for number in range(self._cells.n_stream):
            labels = token_rows.labels_in_place(self._handle(), number)
            if sampled:
                labels[self._cells.stream(number).positions >= 0] |= SAMPLED
            labels[labels != 0] |= EARLIER

    def read(self, seq_id: int, cells: np.ndarray, n_bytes: int) -> np.ndarray:
        """The block of the tokens in `cells` (uint32 [n]), of n_bytes."""
        return token_rows.read_tokens(self._handle(), self._cells.stream_of(seq_id), np.ascontiguousarray(cells), n_bytes)

    def hold(self, seq_id: int, cells: np.ndarray) -> HeldTokens:
        """Cells (uint32 [n]) of tokens that are computed stay as they are, and can be read from any thread while others are computed, until they
        are released. Raises NativeError where their rows are not in host memory."""
        return HeldTokens(self._handle(), self._cells.stream_of(seq_id), np.ascontiguousarray(cells))

    def put(self, seq_id: int, first: int, block: np.ndarray, rows: range, n_block: int, label: int) -> None:
        """Put rows of a block of n_block tokens at positions `first` and on of a sequence, in place of what it has there and behind.
        Raises DoesNotFit where there are not so many empty cells; the sequence then ends at `first`."""
        self.write(seq_id, self.place(seq_id, first, len(rows), label), block, rows.start, n_block, range(self.n_layers()))

    def place(self, seq_id: int, first: int, n: int, label: int) -> np.ndarray:
        """Cells, uint32 [n], for n tokens at positions `first` and on of a sequence, in place of what it has there and behind. Raises as `put`.
        Their rows must be written before the next decode, or come while it computes."""
        return token_rows.add_tokens(self._handle(), seq_id, first, n, label)

    def write(self, seq_id: int, cells: np.ndarray, rows: np.ndarray, skip: int, n_block: int, layers: range) -> None:
        """Write the rows of `cells` in some of the layers. `rows`: those of a block of n_block tokens in these layers, its first `skip` are
        left out."""
        token_rows.write_tokens(self._handle(), self._cells.stream_of(seq_id), cells, skip, n_block, rows, layers)

    def n_layers(self) -> int:
        """Those that keep rows: what `write` counts."""
        return len(self.row_bytes()[0])

    # ---- rows that come while the next decode computes -------------------------------------------------------------------------------

    @property
    def can_wait(self) -> bool:
        """Whether a decode waits in each layer for its rows only: on the processor, where nodes of ours serve all layers."""
        return token_rows.can_wait_for_rows(self._handle())

    def expect(self) -> None:
        """A thread brings rows from now on (`write`, then `came`, for the first layers first): the next decode waits for them, and does not
        end before they all came. After `failed` it raises, and has computed nothing."""
        token_rows.expect_rows(self._handle())

    def came(self, end_layer: int) -> None:
        """The rows of all layers before `end_layer` are there. From the thread that brings them, as `failed`."""
        token_rows.rows_came(self._handle(), end_layer)

    def failed(self) -> None:
        token_rows.rows_failed(self._handle())

    def expect_none(self) -> None:
        """When the thread that brought rows is done, whether they came or failed."""
        token_rows.expect_no_rows(self._handle())
