"""Saves beside the decoding: threads copy finished rows out while other tokens are computed."""

from __future__ import annotations

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
"""So long a prompt waits for rows that are being copied and that it begins with; then it is computed."""

LEAST_SHARED = 64
"""Tokens that a prompt waits for; fewer are computed as quickly."""


class Pending(NamedTuple):
    seq_id: int
    root: bytes
    tokens: np.ndarray
    """int32 [n]."""
    done: Future[None]


class Saver:
    """Saves of a sequence in the order in which they were asked for, by a thread of its own: a slot whose rows are to go waits for their copy
    and for no other. `add` and `ready` belong to the thread that decodes."""

    def __init__(self) -> None:
        self._threads: dict[int, ThreadPoolExecutor] = {}  # by sequence
        self._pending: list[Pending] = []
        self._waits: dict[int, float] = {}  # by sequence: until when it waits for rows of another

    def add(self, seq_id: int, root: bytes, tokens: np.ndarray, save: Callable[[], None]) -> None:
        """`save` runs on the thread, or here where there is none to be had; what it raises is logged."""
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
        except RuntimeError:  # no more threads, or closed; the pool may still have the work
            work()

    def ready(self, seq_id: int, root: bytes, tokens: np.ndarray, n_have: int, moment_s: float) -> bool:
        """Whether a sequence that holds the first n_have of these tokens can read the others: what it holds besides is saved, and so is what
        goes on as they do, which can be found then; the latter is waited for `MOST_WAIT_S` at most. `moment_s`: so long now."""
        running = [one for one in self._pending if not one.done.done()]
        needed = [one.done for one in running if one.seq_id == seq_id and len(one.tokens) > n_have]
        alike = [one.done for one in running if one.root == root and n_common(one.tokens, tokens) >= n_have + LEAST_SHARED]
        if not alike:
            self._waits.pop(seq_id, None)
        elif time.monotonic() > self._waits.setdefault(seq_id, time.monotonic() + MOST_WAIT_S):
            alike = []
        return not wait(needed + alike, moment_s).not_done

    def leave(self, seq_id: int) -> None:
        """The sequence waits no more: it begins, or does not want to."""
        self._waits.pop(seq_id, None)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all is saved that was asked for until now. From any thread."""
        wait([one.done for one in self._pending], timeout_s)

    def close(self) -> None:
        """Behind all that was asked for."""
        for thread in self._threads.values():
            thread.shutdown(wait=True)
