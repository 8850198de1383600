"""Loads the rows of a prompt into its cells: a thread reads, verifies and copies them layer by layer, while earlier layers are computed."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np

from edgekv._native.prefix_callbacks import SequenceTokens
from edgekv._native.token_rows import BlockRows, HeldTokens
from edgekv.common.errors import DoesNotFit
from edgekv.prefix_cache.blocks import KeptBlock
from edgekv.prefix_cache.results import BlockPiece
from edgekv.runtime.tokens import Tokens
from edgekv.server.readings import label_of

log = logging.getLogger("edgekv")

T = TypeVar("T")

READ_AHEAD = 4
"""Groups of rows that one thread reads and verifies ahead of the copies; the store bounds their bytes. More threads would take cores from
the computation (measured, LOG.md)."""


def place(tokens: Tokens, prompt: SequenceTokens, pieces: Sequence[BlockPiece]) -> list[np.ndarray]:
    """Place cells for a prompt's pieces, as many as are free: uint32 [n] for each piece."""
    while pieces:
        n = [piece.n for piece in pieces]
        first = pieces[0].first
        part = slice(first, first + sum(n))
        at = None if prompt.at is None else np.ascontiguousarray(prompt.at[:, part])
        labels = np.repeat(np.array([label_of(piece) for piece in pieces], np.uint8), n)
        try:
            cells = tokens.place(prompt.seq_id, first if at is None else int(at[0, 0]), labels, prompt.tokens[part], at, _parked(pieces))
            return np.split(cells, np.cumsum(n)[:-1])
        except DoesNotFit:  # other sequences fill a unified cache: the server computes the rest, or refuses it
            pieces = pieces[:-1]
    return []


def _parked(pieces: Sequence[BlockPiece]) -> list[tuple[int, HeldTokens]]:
    """Rows that are to come back with their memory, each behind so many tokens."""
    of = [(piece.first - pieces[0].first, piece.block.rows) for piece in pieces if isinstance(piece.block, KeptBlock) and piece.n == piece.n_block]
    return [(first, rows) for first, rows in of if isinstance(rows, HeldTokens) and rows.parked]


class Loading:
    """One load. The decoding thread calls everything here, between two decodes; `start` begins another thread."""

    def __init__(self, tokens: Tokens, seq_id: int, pieces: Sequence[BlockPiece], cells: Sequence[np.ndarray], groups: Sequence[range],
                 came: Callable[[int], object], at: np.ndarray | None):
        """`cells`: uint32 [n] for each piece, placed for its tokens; none where its rows are in place. `groups`: the layers to read together, in order.
        `came` is called with the number of complete pieces. `at`: positions of all tokens (`Tokens.cells_of`)."""
        self._tokens, self._groups, self._came, self._at = tokens, groups, came, at
        self.seq_id, self.pieces = seq_id, pieces
        self._cells = list(cells)
        self._n_good = len(pieces)
        self._thread: threading.Thread | None = None

    @property
    def brings(self) -> bool:
        """Whether some rows are not in place."""
        return any(map(len, self._cells))

    def start(self) -> None:
        """Call it right before a decode. The decode waits in each layer for its rows, and fails if they are unusable. Raises RuntimeError if
        no thread can be started."""
        self._forget_what_left()
        self._tokens.arrivals.expect()
        thread = threading.Thread(target=self._run, args=(True,), name="edgekv-load", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # too many threads
            self._tokens.arrivals.expect_none()
            raise
        self._thread = thread

    def finish(self) -> int:
        """Wait for the end; returns the number of complete pieces, from the first on."""
        if self._thread is None:
            self._forget_what_left()
            self._run(False)
        else:
            self._thread.join()
            self._tokens.arrivals.expect_none()
        return self._n_good

    def _forget_what_left(self) -> None:
        """Skip cells that left the sequence: another sequence may own them now."""
        end = max((piece.first + piece.n for piece in self.pieces), default=0)
        held = self._tokens.cells_of(self.seq_id, end, None if self._at is None else self._at[:, :end])
        for i, (piece, cells) in enumerate(zip(self.pieces, self._cells)):
            now = held[piece.first : piece.first + len(cells)]
            differ = np.flatnonzero(now != cells[: len(now)])
            self._cells[i] = np.ascontiguousarray(cells[: differ[0] if len(differ) else len(now)])

    # ---- the thread that brings them -------------------------------------------------------------------------------------------------

    def _run(self, awaited: bool) -> None:
        done = False
        try:
            self._bring_all(awaited)
            done = True
        except Exception:  # after any error, missing rows must not be read
            log.exception("kept prefixes could not be loaded")
        finally:
            if not done:
                self._n_good = 0
                if awaited:
                    self._tokens.arrivals.failed()  # otherwise a decode would wait for ever
            self._came(self._n_good)

    def _bring_all(self, awaited: bool) -> None:
        """Bring rows layer by layer if a decode waits, otherwise block by block. Those in RAM are written together; those on their way as they come, for
        the store bounds their bytes."""
        groups = self._groups if awaited or not self._groups else [range(self._groups[-1].stop)]
        order = [(i, layers) for layers in groups for i in range(len(self.pieces))]
        with ThreadPoolExecutor(1, thread_name_prefix="edgekv-read") as pool:
            together: list[BlockRows] = []
            for (i, layers), rows in zip(order, self._rows(pool, order)):
                piece, cells = self.pieces[i], self._cells[i]
                if i < self._n_good and rows is None and len(cells):  # earlier pieces still come
                    self._n_good = i
                    if awaited:
                        self._tokens.arrivals.failed()
                if i < self._n_good and rows is not None and len(cells):
                    together.append(BlockRows(cells, piece.skip, piece.n_block, rows))
                del rows
                if together and (i == len(self.pieces) - 1 or (len(cells) and (piece.coming or piece.block.payload is None))):
                    self._tokens.write(self.seq_id, together, layers)
                    together.clear()
                if awaited and i == len(self.pieces) - 1 == self._n_good - 1:
                    self._tokens.arrivals.came(layers.stop)

    def _rows(self, pool: ThreadPoolExecutor, order: Sequence[tuple[int, range]]) -> Iterator[np.ndarray | None]:
        """Of these pieces and layers; a thread reads some ahead, unless all are in memory."""
        calls = (partial(self._read, *one) for one in order)
        return _ahead(pool, calls) if any(piece.coming for piece in self.pieces) else (call() for call in calls)

    def _read(self, i: int, layers: range) -> np.ndarray | None:
        return self.pieces[i].read(layers) if i < self._n_good and len(self._cells[i]) else None


def _ahead(pool: ThreadPoolExecutor, calls: Iterable[Callable[[], T]]) -> Iterator[T]:
    """The results of calls, in order; a few calls run ahead."""
    under_way: deque[Future[T]] = deque()
    for call in calls:
        under_way.append(pool.submit(call))
        if len(under_way) > READ_AHEAD:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()
