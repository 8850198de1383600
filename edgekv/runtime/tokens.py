"""K and V rows of whole tokens of a context: taken out as blocks, put back without computing them.

A block of n tokens is uint8: for each layer K rows [n, bytes], then V rows [n, bytes], as the cache holds them; the keys of an index follow
V and count as part of it. A snapshot, uint8 [bytes], is everything else that a sequence keeps: windows of sliding layers, recurrent states.
A context with only states has empty blocks. Call everything here on the decoding thread, between two decodes, unless a method says otherwise.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from edgekv._native import core, device_calls, token_rows
from edgekv._native.token_rows import Arrivals, BlockRows, HeldTokens
from edgekv.common.errors import NativeError
from edgekv.runtime.cells import EARLIER, ROUNDED, SAMPLED, Cells, StreamCells


class Tokens:
    """The tokens of a context's sequences; made by its Runtime."""

    def __init__(self, handle: Callable[[], core.Handle], cells: Cells):
        self._handle = handle
        self._cells = cells

    def row_bytes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bytes of a token's K row and V row, for each layer that keeps rows; a compressed row has only K, and keys of an index count as
        V. Raises NativeError if the context keeps anything other than rows and snapshots."""
        return token_rows.token_bytes(self._handle())

    def depends_on(self, adapter: int = 0) -> bytes:
        """16 bytes: a digest of all that K and V depend on besides the model file's weights and the tokens, as the context was really built.
        adapter: address of a llama_adapter_lora, counted with its content at scale 1, and all of it is read; the adapter in force does not
        count. Raises as `row_bytes`."""
        digest = hashlib.blake2b(digest_size=16, person=b"edgekv-context")
        token_rows.describe(self._handle(), adapter, digest.update)
        return digest.digest()

    @property
    def on_device(self) -> bool:
        return device_calls.plane(self._handle()) is not None

    def cells_of(self, seq_id: int, n: int, at: np.ndarray | None = None) -> np.ndarray:
        """uint32 [m], m <= n: the cells of the first m tokens of a sequence, up to the first gap. at: int32 [3, n], their positions, lines and columns;
        None: positions count up. A context that keeps only states has no cells: token numbers replace them."""
        return self.labelled(seq_id, n, at)[0]

    def labelled(self, seq_id: int, n: int, at: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """`cells_of`, and uint8 [m], a copy: how their tokens were read (`StreamCells.labels`)."""
        if not self._cells.known:
            return np.arange(n, dtype=np.uint32), np.zeros(n, np.uint8)
        view = self._cells.stream(self._cells.stream_of(seq_id))
        cells = self._first_cells(seq_id, n, view) if at is None else self._cells_at(seq_id, view, at)
        return cells, view.labels[cells]

    @staticmethod
    def _first_cells(seq_id: int, n: int, view: StreamCells) -> np.ndarray:
        mine = np.flatnonzero(view.in_sequence(seq_id) & (view.positions < n)).astype(np.uint32)
        mine = mine[np.argsort(view.positions[mine], kind="stable")]
        missing = np.flatnonzero(view.positions[mine] != np.arange(len(mine)))
        return mine[:missing[0]] if len(missing) else mine

    def _cells_at(self, seq_id: int, view: StreamCells, at: np.ndarray) -> np.ndarray:
        """Tokens of one image may all have the same position; lines and columns distinguish them. A prompt's tokens have this order."""
        mine = np.flatnonzero(view.in_sequence(seq_id)).astype(np.uint32)
        lines, columns = token_rows.in_image(self._handle(), self._cells.stream_of(seq_id), mine)
        order = np.lexsort((columns, lines, view.positions[mine]))[: at.shape[1]]
        found = np.stack([view.positions[mine], lines, columns])[:, order]
        differ = np.flatnonzero((found != at[:, : len(order)]).any(axis=0))
        return np.ascontiguousarray(mine[order[: differ[0]] if len(differ) else order])

    def settings_change(self, sampled: bool) -> None:
        """Label the tokens that were not read exactly EARLIER, but for rounding: other settings apply from now on. sampled: any token may have been
        sampled, because a device does not label its steps. The context must have cells."""
        for number in range(self._cells.n_stream):
            labels = token_rows.labels_in_place(self._handle(), number)
            if sampled:
                labels[self._cells.stream(number).positions >= 0] |= SAMPLED
            labels[(labels | ROUNDED) != ROUNDED] |= EARLIER

    def read(self, seq_id: int, cells: np.ndarray, n_bytes: int) -> np.ndarray:
        """The block of the tokens in `cells` (uint32 [n]), of n_bytes."""
        if not self._cells.known:
            return np.empty(0, np.uint8)
        return token_rows.read_tokens(self._handle(), self._cells.stream_of(seq_id), np.ascontiguousarray(cells), n_bytes)

    def hold(self, seq_id: int, cells: np.ndarray, parks: bool = True) -> HeldTokens:
        """Keep computed tokens' cells (uint32 [n]) unchanged until they are released, and have them asked for (`HeldTokens.needed`): any thread may read
        them while others are computed. parks: where the tokens leave, they may be parked.
        Raises NativeError if their rows are not in host memory, or do not exist."""
        if not self._cells.known:
            raise NativeError("the context keeps states alone: it has no cells to hold")
        return HeldTokens(self._handle(), self._cells.stream_of(seq_id), np.ascontiguousarray(cells), parks)

    def must_copy(self, seq_id: int, held: Sequence[tuple[HeldTokens, bool]]) -> list[HeldTokens]:
        """Those whose rows somebody must copy before a sequence loses all or some of their tokens (`token_rows.must_copy`)."""
        return token_rows.must_copy(self._handle(), seq_id, held)

    def unpark(self, seq_id: int, held: Sequence[HeldTokens], cells: Sequence[np.ndarray]) -> list[bool]:
        """Bring parked rows back into placed cells of a sequence, uint32 [n] each; whether each did (`token_rows.unpark`)."""
        return token_rows.unpark(self._handle(), self._cells.stream_of(seq_id), held, cells)

    def put(self, seq_id: int, first: int, block: np.ndarray, rows: range, n_block: int, label: int) -> None:
        """Put the tokens `rows` of a block of n_block tokens into a sequence, from position `first` on, in place of all that it has from there
        on. Raises DoesNotFit if too few cells are empty; the sequence then ends at `first`."""
        cells = self.place(seq_id, first, np.full(len(rows), label, np.uint8))
        self.write(seq_id, [BlockRows(cells, rows.start, n_block, block)], range(self.n_layers()))

    def place(self, seq_id: int, first: int, labels: np.ndarray, tokens: np.ndarray | None = None, at: np.ndarray | None = None,
              parked: Sequence[tuple[int, HeldTokens]] = ()) -> np.ndarray:
        """uint32 [n]: cells for n tokens of a sequence, with `labels` (uint8 [n]), from position `first` on; they replace all its later tokens. tokens:
        int32 [n], their numbers, which some models look back at; below 0: of media. at: int32 [3, n], positions, lines and columns, as in `cells_of`.
        parked: rows that come back into them (`unpark`), each behind so many of the tokens; for them no free memory is asked.
        Write their rows before the next decode, or while it computes (`arrivals`). Raises the errors of `put`."""
        if not self._cells.known:
            return np.arange(first, first + len(labels), dtype=np.uint32)
        return token_rows.add_tokens(self._handle(), seq_id, first, labels, tokens, at, parked)

    def write(self, seq_id: int, blocks: Sequence[BlockRows], layers: range) -> None:
        """Write rows of some blocks in `layers`."""
        if self._cells.known:
            token_rows.write_tokens(self._handle(), self._cells.stream_of(seq_id), blocks, layers)

    @property
    def keeps_snapshots(self) -> bool:
        """Whether a sequence keeps more than rows. Tokens that are put in then need the snapshot after the last of them."""
        return token_rows.keeps_snapshots(self._handle())

    def snapshot(self, seq_id: int) -> np.ndarray:
        """A sequence's snapshot after its newest token. Raises NativeError if the context keeps none."""
        return token_rows.read_snapshot(self._handle(), seq_id)

    def put_snapshot(self, seq_id: int, position: int, snapshot: np.ndarray) -> None:
        """Put in the snapshot that was taken before the token at `position` of a sequence, which ends there; the rows before it are in place. Raises
        NativeError if the snapshot is of another context; the sequence is empty then."""
        token_rows.write_snapshot(self._handle(), seq_id, position, snapshot)

    def n_layers(self) -> int:
        """The layers that keep rows; `write` counts these."""
        return len(self.row_bytes()[0])

    @property
    def arrivals(self) -> Arrivals:
        """For rows that come while the next decode computes."""
        return Arrivals(self._handle())
