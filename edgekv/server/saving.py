"""Saves beside the decoding: threads copy finished rows, between answers where they can, because a copy takes a core and memory from an answer."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from edgekv._native import http_server as native
from edgekv.prefix_cache.blocks import n_common

log = logging.getLogger("edgekv")

MOST_WAIT_S = 1.0
"""A prompt waits this long for another block of its first rows before it computes them."""

LEAST_SHARED = 64
"""Fewest tokens worth a wait: fewer are computed as quickly."""

PAUSE_S = 2.0
"""A block waits this long for the end of the answers, and is then copied beside them: a server that always answers also keeps what it reads."""

STILL_S, STILL_GAPS = 0.5, 3
"""No token for so many seconds and so many gaps between tokens: no answer gets any. The decoding thread may be waiting for held rows."""

POLL_S = 0.05
ALL = 1 << 62


def answers() -> tuple[int, float] | None:
    """The tokens of all answers so far, and the seconds between the newest two; None: no slot is at work."""
    pace = native.pacing()
    _, first, later = native.waits()
    return (sum(first.counts) + sum(later.counts), pace.last_gap_s) if pace.n_running else None


@dataclass(eq=False)
class Save:
    seq_id: int
    root: bytes
    tokens: np.ndarray
    """int32 [n]."""
    n_saved: int = 0
    """The first tokens, which are saved; ALL: it has ended."""
    n_due: int = 0
    """The first tokens, which somebody waits for."""


class Saver:
    """Saves the rows of sequences, each on a thread of its own and in order, so that a slot whose rows must go waits only for its own copy. The
    decoding thread calls `add` and `ready`."""

    def __init__(self) -> None:
        self._threads: dict[int, ThreadPoolExecutor] = {}  # by sequence
        self._changed = threading.Condition()  # guards all below
        self._saves: list[Save] = []
        self._waits: dict[int, tuple[int, float]] = {}  # by sequence that waits for others' rows: tokens saved so far, and since when no more were
        self._n_answered, self._since = -1, 0.0  # tokens of answers, and since when there were no more

    def add(self, seq_id: int, root: bytes, tokens: np.ndarray, copy: Callable[[Callable[[int], int]], None]) -> None:
        """Run `copy` on the sequence's thread, or here if none can be started. It calls what it gets with the first token of each block before it
        copies the block, and waits there while answers are running. Logs its exceptions."""
        taken, save = threading.Lock(), Save(seq_id, root, tokens)

        def work() -> None:
            if not taken.acquire(blocking=False):
                return
            try:
                copy(lambda first: self._turn(save, first))
            except Exception:
                log.exception("a prefix could not be kept")
            finally:
                with self._changed:
                    save.n_saved = ALL
                    self._changed.notify_all()

        with self._changed:
            self._saves = [one for one in self._saves if one.n_saved < ALL] + [save]
        if seq_id not in self._threads:
            self._threads[seq_id] = ThreadPoolExecutor(1, thread_name_prefix=f"edgekv-save-{seq_id}")
        try:
            self._threads[seq_id].submit(work)
        except RuntimeError:  # no more threads, or the pool is closed; it may still have the work
            save.n_due = ALL
            work()

    def _turn(self, save: Save, first: int) -> int:
        """All tokens before `first` are saved. Returns it when the next ones may be."""
        with self._changed:
            save.n_saved = first
            self._changed.notify_all()
            end = time.monotonic() + PAUSE_S
            while first >= save.n_due and time.monotonic() < end and self._answering():
                self._changed.wait(POLL_S)
        return first

    def _answering(self) -> bool:
        """Whether an answer gets tokens."""
        found = answers()
        if found is None:
            return False
        n_answered, gap_s = found
        if n_answered != self._n_answered:
            self._n_answered, self._since = n_answered, time.monotonic()
        return time.monotonic() - self._since <= min(PAUSE_S, max(STILL_S, STILL_GAPS * gap_s))

    def ready(self, seq_id: int, root: bytes, tokens: np.ndarray, n_have: int, moment_s: float) -> bool:
        """Whether a sequence with the first n_have of these tokens can go on. It waits until its other rows are saved, because they must go. It
        also waits for saves that begin with these tokens, because it can load them, while blocks of them come: each takes `MOST_WAIT_S` at most.
        `moment_s`: longest wait of this call."""
        with self._changed:
            needed = [(one, ALL) for one in self._saves if one.seq_id == seq_id and len(one.tokens) > n_have]
            common = [(one, n_common(one.tokens, tokens)) for one in self._saves if one.root == root]
            alike = [(one, n) for i, (one, n) in enumerate(common) if one.n_saved < n and n >= n_have + LEAST_SHARED
                     and not any(earlier.seq_id == one.seq_id and m >= n for earlier, m in common[:i])]
            n_saved = sum(one.n_saved for one, _ in alike)
            if not alike:
                self._waits.pop(seq_id, None)
            elif (before := self._waits.get(seq_id)) is None or before[0] != n_saved:
                self._waits[seq_id] = n_saved, time.monotonic()
            elif time.monotonic() - before[1] > MOST_WAIT_S:
                alike = []
            return self._wait(needed + alike, moment_s)

    def _wait(self, wanted: Sequence[tuple[Save, int]], timeout_s: float | None) -> bool:
        """Wait for the first tokens of saves, and end their pauses; False: it took longer. With the lock held."""
        for last, n in wanted:
            last.n_due = max(last.n_due, n)
            for one in self._saves[: self._saves.index(last)]:
                if one.seq_id == last.seq_id:  # its thread comes to `last` afterwards
                    one.n_due = ALL
        self._changed.notify_all()
        return self._changed.wait_for(lambda: all(one.n_saved >= n for one, n in wanted), timeout_s)

    def saves_more(self, root: bytes, tokens: np.ndarray, n: int) -> bool:
        """Whether a save goes on that has more of these tokens than the first n."""
        with self._changed:
            return any(one.root == root and one.n_saved < ALL and n_common(one.tokens, tokens) >= n + LEAST_SHARED for one in self._saves)

    def leave(self, seq_id: int) -> None:
        """The sequence stops waiting: its prompt begins, or is given up."""
        with self._changed:
            self._waits.pop(seq_id, None)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait for all saves so far, which go on beside answers. Any thread may call it."""
        with self._changed:
            self._wait([(one, ALL) for one in self._saves], timeout_s)

    def close(self) -> None:
        """End after all saves so far."""
        self.flush()
        for thread in self._threads.values():
            thread.shutdown(wait=True)
