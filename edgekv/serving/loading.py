"""Rows of a prompt on their way into its cells: read, verified and copied by a thread, layer by layer, while the layers before are computed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from edgekv.live.tokens import Tokens
from edgekv.store.results import Piece

log = logging.getLogger("edgekv")

N_READERS = 1
"""It reads and verifies while the rows before are copied. More of them take cores from the computation (measured, LOG.md)."""


@dataclass
class Placed:
    """A piece of a stored chain, and where its rows belong."""

    piece: Piece
    cells: np.ndarray
    """uint32 [n], of its first tokens: the rest has left the sequence."""


class Loading:
    """One load. All but what `start` begins runs on the thread that decodes, between two decodes."""

    def __init__(self, tokens: Tokens, seq_id: int, placed: Sequence[Placed], groups: Sequence[range], came: Callable[[int], None]):
        """`groups`: the layers that are read together, in their order. `came` is told how many pieces have all of their rows."""
        self._tokens, self._seq_id, self._groups, self._came = tokens, seq_id, groups, came
        self.placed = placed
        self._n_good = len(placed)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Directly before a decode, which waits in each layer for its rows. Where they cannot be used it fails. Raises RuntimeError where there
        is no thread to be had."""
        self._forget_what_left()
        self._tokens.expect()
        thread = threading.Thread(target=self._run, args=(True,), name="edgekv-load", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there are too many
            self._tokens.expect_none()
            raise
        self._thread = thread

    def finish(self) -> int:
        """Wait until all is done; how many pieces, from the first, have all of their rows."""
        if self._thread is None:
            self._forget_what_left()
            self._run(False)
        else:
            self._thread.join()
            self._tokens.expect_none()
        return self._n_good

    def _forget_what_left(self) -> None:
        """Cells that belong to the sequence no more may be another's by now."""
        end = max((one.piece.first + one.piece.n for one in self.placed), default=0)
        held = self._tokens.cells_of(self._seq_id, end)
        for one in self.placed:
            now = held[one.piece.first : one.piece.first + len(one.cells)]
            differ = np.flatnonzero(now != one.cells[: len(now)])
            one.cells = np.ascontiguousarray(one.cells[: differ[0] if len(differ) else len(now)])

    # ---- the thread that brings them -------------------------------------------------------------------------------------------------

    def _run(self, awaited: bool) -> None:
        try:
            with ThreadPoolExecutor(N_READERS, thread_name_prefix="edgekv-read") as pool:
                reads = [[pool.submit(self._read, i, layers) for i in range(len(self.placed))] for layers in self._groups]
                for layers, of_layers in zip(self._groups, reads):
                    self._bring(layers, of_layers, awaited)
        except Exception:  # whatever it was: nobody may wait for ever, or read rows that did not come
            log.exception("kept prefixes could not be loaded")
            self._n_good = 0
            if awaited:
                self._tokens.failed()
            return
        try:
            self._came(self._n_good)
        except Exception:
            log.exception("loaded prefixes could not be kept in RAM")

    def _read(self, i: int, layers: range) -> bool:
        coming = self.placed[i].piece.coming
        return i < self._n_good and (coming is None or coming.read(layers))

    def _bring(self, layers: range, reads: Sequence[Future[bool]], awaited: bool) -> None:
        for i, read in enumerate(reads):
            if i >= self._n_good:
                return
            if not read.result():
                self._n_good = i
                if awaited:
                    self._tokens.failed()
                return
            one = self.placed[i]
            if len(one.cells):
                self._tokens.write(self._seq_id, one.cells, one.piece.payload, one.piece.skip, one.piece.n_block, layers)
        if awaited and self._n_good == len(self.placed):
            self._tokens.came(layers.stop)
