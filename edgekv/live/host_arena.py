"""The arena in host memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgekv.hierarchy.transport import Transport


class HostArena(Transport):
    """A transport that copies at once, on the calling thread, and publishes at the next `finished`: two phases, as a stream has
    them.

    copy(ids, slots) copies bytes and raises TierError where it cannot; publish(ids, slots) enters copied pages in the page table
    and returns bool [n], False for those that changed since; release(ids) takes them out; resize(n_slots).
    """

    def __init__(self, copy: Callable[[np.ndarray, np.ndarray], None], publish: Callable[[np.ndarray, np.ndarray], np.ndarray],
                 release: Callable[[np.ndarray], None], resize: Callable[[int], None]):
        self._copy = copy
        self._publish = publish
        self._release = release
        self._resize = resize
        self._copied: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._n_tickets = 0

    def start(self, ids: np.ndarray, slots: np.ndarray) -> int:
        self._copy(ids, slots)
        self._n_tickets += 1
        self._copied.append((self._n_tickets, ids, slots))
        return self._n_tickets

    def finished(self) -> list[tuple[int, np.ndarray]]:
        copied, self._copied = self._copied, []
        return [(ticket, self._publish(ids, slots)) for ticket, ids, slots in copied]

    def release(self, ids: np.ndarray) -> None:
        self._release(ids)

    def resize(self, n_slots: int) -> None:
        self._resize(n_slots)

    def close(self) -> None:
        self._copied.clear()
