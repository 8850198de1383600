"""Rows that are kept and lie in slots: who copies them out when a prompt takes the cells, and whether answers run, which writes wait for."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import NamedTuple
from weakref import WeakKeyDictionary

from edgekv._native import http_server as native
from edgekv._native.token_rows import HeldTokens
from edgekv.runtime.tokens import Tokens

STILL_S, STILL_GAPS = 0.5, 3
"""No token for so many seconds and so many gaps between tokens: no answer gets any."""


def answers() -> tuple[int, float] | None:
    """The tokens of all answers so far, and the seconds between the newest two; None: no slot is at work."""
    pace = native.pacing()
    _, first, later = native.waits()
    return (sum(first.counts) + sum(later.counts), pace.last_gap_s) if pace.n_running else None


class Answers:
    """Whether answers get tokens now. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n, self._since = -1, 0.0  # tokens of all answers, and since when there were no more

    def run(self) -> bool:
        found = answers()
        if found is None:
            return False
        n, gap_s = found
        with self._lock:
            if n != self._n:
                self._n, self._since = n, time.monotonic()
            return time.monotonic() - self._since <= max(STILL_S, STILL_GAPS * gap_s)


class _Move(NamedTuple):
    """Rows of a sequence that threads copy."""

    rows: list[HeldTokens]
    ends: list[Future[None]]


class RowsInSlots:
    """Empties slots beside answers; the decoding thread calls it. What nobody asks for here leaves its cells in the same way (`HeldTokens.take_out`), once
    the cells are needed, on that thread. Rows that would be parked need nobody: they leave when the tokens do. Nor do those that another slot has too:
    they stay."""

    def __init__(self) -> None:
        self._rows: WeakKeyDictionary[HeldTokens, int] = WeakKeyDictionary()  # the end of their block
        self._moves: dict[int, _Move] = {}
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="edgekv-save")

    def add(self, end: int, rows: HeldTokens) -> None:
        """Rows of sequences, up to their token `end`, are kept where they are. They are forgotten once nothing else refers to them."""
        self._rows[rows] = end

    def ready(self, seq_id: int, n_have: int, moment_s: float, tokens: Tokens) -> bool:
        """Whether nothing that must be copied lies behind a sequence's first n_have tokens. A thread copies it meanwhile, or two where no slot is being
        answered. `moment_s`: longest wait of this call; 0: another slot is. `tokens`: those of its context."""
        move = self._moves.get(seq_id)
        if move is not None and wait_for(move.ends, moment_s).not_done:
            return False
        asked = move.rows if move is not None else []  # perhaps by a request that is gone, of other rows
        leave = [(one, end - one.n >= n_have) for one, end in list(self._rows.items()) if end > n_have and not one.parked and one not in asked]
        copied, n, since = tokens.must_copy(seq_id, leave) if leave else [], 2 if moment_s else 1, time.monotonic()
        self._moves.pop(seq_id, None)
        if not copied:
            return True
        try:
            self._moves[seq_id] = _Move(copied, [self._threads.submit(_take_out, copied[i::n], since) for i in range(n)])
        except RuntimeError:  # too many threads: the decoding thread does it
            return True
        return self.ready(seq_id, n_have, moment_s, tokens)

    def close(self) -> None:
        """The stores are closed: nothing is held any more."""
        self._threads.shutdown()
        for rows in list(self._rows):
            rows.release()


def _take_out(rows: list[HeldTokens], since: float) -> None:
    while rows:
        rows.pop(0).take_out(since)
