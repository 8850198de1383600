"""The interface of an arena and of the native page table, as the hierarchy uses it."""

from typing import Protocol

import numpy as np

from edgekv.common.errors import TierError


class Slots(Protocol):
    """The slots of the native page table. ids are `PageShape.ids`, int64 [n]."""

    def release(self, ids: np.ndarray) -> None:
        """Take pages out of the page table. Nothing is copied: home always has the bytes."""

    def resize(self, n_slots: int) -> None:
        """Give the arena so many slots; pages in slots that stay are kept. The caller has emptied the slots that go. Raises TierError where
        there is no memory."""


class Transport(Protocol):
    """Copies pages from home into the arena. Slots are int32 [n]."""

    pages: Slots
    """The page table that the copies are entered in."""

    def start(self, ids: np.ndarray, slots: np.ndarray) -> int:
        """Begin to copy pages from home into slots; returns a ticket. Raises TierError if nothing was begun."""

    def finished(self) -> list[tuple[int, np.ndarray]]:
        """Returns (ticket, bool [n]) for each copy that ended since the last call, in any order. True: the page is complete and
        stands in the page table now. False: it changed since its copy began, or the copy failed."""

    def close(self) -> None:
        """Wait for the copies under way and forget them: the slots may be taken away afterwards."""


class NoSlots(Slots, Transport):
    """Of a processor, where pages are dropped and have no slots: nothing is ever copied."""

    def __init__(self) -> None:
        self.pages = self

    def release(self, ids: np.ndarray) -> None:
        pass

    def resize(self, n_slots: int) -> None:
        raise TierError("pages have no slots on a processor")

    def start(self, ids: np.ndarray, slots: np.ndarray) -> int:
        raise TierError("pages have no slots on a processor")

    def finished(self) -> list[tuple[int, np.ndarray]]:
        return []

    def close(self) -> None:
        pass
