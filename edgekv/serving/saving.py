"""Saves beside the decoding: threads copy finished rows out while other tokens are computed."""

from __future__ import annotations

import logging
import threading
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
    root: bytes
    tokens: np.ndarray
    """int32 [n]."""
    done: Future[None]


class Saver:
    """Saves of a sequence in the order in which they were asked for, by a thread of its own: a slot whose rows are to go waits for their copy
    and for no other. `add` and `like` belong to the thread that decodes."""

    def __init__(self) -> None:
        self._threads: dict[int, ThreadPoolExecutor] = {}  # by sequence
        self._pending: list[Pending] = []

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
            self._pending.append(Pending(root, tokens, self._threads[seq_id].submit(work)))
        except RuntimeError:  # no more threads, or closed; the pool may still have the work
            work()

    def like(self, root: bytes, tokens: np.ndarray, n_have: int) -> list[Future[None]]:
        """What is being saved and goes on as these tokens do behind the first n_have; it can be found when it is done."""
        return [one.done for one in self._pending
                if one.root == root and not one.done.done() and n_common(one.tokens, tokens) >= n_have + LEAST_SHARED]

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all is saved that was asked for until now. From any thread."""
        wait([one.done for one in self._pending], timeout_s)

    def close(self) -> None:
        """Behind all that was asked for."""
        for thread in self._threads.values():
            thread.shutdown(wait=True)
