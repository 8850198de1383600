"""The arena in host memory."""

from typing import Protocol

import numpy as np

from edgekv.tiering.transport import Slots, Transport


class HostPages(Slots, Protocol):
    """The native calls that the arena needs; ids and slots are int [n]."""

    def copy(self, ids: np.ndarray, slots: np.ndarray) -> None:
        """Copy the bytes of pages into slots. Raises TierError."""

    def publish(self, ids: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Enter copied pages in the page table; bool [n], False for those that changed since the copy."""


class HostArena(Transport):
    """Copies at once, on the calling thread, and publishes at the next `finished`: two phases, as with a stream."""

    def __init__(self, pages: HostPages):
        self.pages = pages
        self._copied: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._n_tickets = 0

    def start(self, ids: np.ndarray, slots: np.ndarray) -> int:
        self.pages.copy(ids, slots)
        self._n_tickets += 1
        self._copied.append((self._n_tickets, ids, slots))
        return self._n_tickets

    def finished(self) -> list[tuple[int, np.ndarray]]:
        copied, self._copied = self._copied, []
        return [(ticket, self.pages.publish(ids, slots)) for ticket, ids, slots in copied]

    def close(self) -> None:
        self._copied.clear()
