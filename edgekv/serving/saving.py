"""Saves beside the decoding: threads copy finished rows while other tokens are computed."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np

from edgekv.store.blocks import n_common

log = logging.getLogger("edgekv")

MOST_WAIT_S = 1.0
"""A prompt waits this long for a copy of its first rows before it computes them."""

LEAST_SHARED = 64
"""Fewest tokens worth a wait: fewer are computed as quickly."""


class Pending(NamedTuple):
    seq_id: int
    root: bytes
    tokens: np.ndarray
    """int32 [n]."""
    done: Future[None]


class Saver:
    """Saves the rows of sequences, each on a thread of its own and in order, so that a slot whose rows must go waits only for its own copy. The
    decoding thread calls `add` and `ready`."""

    def __init__(self) -> None:
        self._threads: dict[int, ThreadPoolExecutor] = {}  # by sequence
        self._pending: list[Pending] = []
        self._waits: dict[int, float] = {}  # by sequence: the end of its wait for another sequence's rows

    def add(self, seq_id: int, root: bytes, tokens: np.ndarray, save: Callable[[], None]) -> None:
        """Run `save` on the sequence's thread, or here if none can be started. Logs its exceptions."""
        taken = threading.Lock()

        def work() -> None:
            if not taken.acquire(blocking=False):
                return
            try:
                save()
            except Exception:
                log.exception("a prefix could not be kept")

        self._pending = [one for one in self._pending if not one.done.done()]
        if seq_id not in self._threads:
            self._threads[seq_id] = ThreadPoolExecutor(1, thread_name_prefix=f"edgekv-save-{seq_id}")
        try:
            self._pending.append(Pending(seq_id, root, tokens, self._threads[seq_id].submit(work)))
        except RuntimeError:  # no more threads, or the pool is closed; it may still have the work
            work()

    def ready(self, seq_id: int, root: bytes, tokens: np.ndarray, n_have: int, moment_s: float) -> bool:
        """Whether a sequence with the first n_have of these tokens can go on. It waits until its other rows are saved, because they must go. It
        also waits, at most `MOST_WAIT_S`, for saves that begin with these tokens, because it can load them. `moment_s`: longest wait of this call."""
        running = [one for one in self._pending if not one.done.done()]
        needed = [one.done for one in running if one.seq_id == seq_id and len(one.tokens) > n_have]
        alike = [one.done for one in running if one.root == root and n_common(one.tokens, tokens) >= n_have + LEAST_SHARED]
        if not alike:
            self._waits.pop(seq_id, None)
        elif time.monotonic() > self._waits.setdefault(seq_id, time.monotonic() + MOST_WAIT_S):
            alike = []
        return not wait(needed + alike, moment_s).not_done

    def leave(self, seq_id: int) -> None:
        """The sequence stops waiting: its prompt begins, or is given up."""
        self._waits.pop(seq_id, None)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait for all saves so far. Any thread may call it."""
        wait([one.done for one in self._pending], timeout_s)

    def close(self) -> None:
        """End after all saves so far."""
        for thread in self._threads.values():
            thread.shutdown(wait=True)
