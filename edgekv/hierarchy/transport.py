"""The tiers that hold the bytes of pages, and what moves them."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Transport(Protocol):
    """Copies pages between home and the arena, and keeps the native page table: ids are `PageShape.ids`, int64 [n]; slots are int32
    [n]."""

    def start(self, ids: np.ndarray, slots: np.ndarray) -> int:
        """Begin to copy pages from home into slots; returns a ticket. Raises TierError where nothing was begun."""

    def finished(self) -> list[tuple[int, np.ndarray]]:
        """Tickets whose copies ended since the call before, in any order, with bool [n]: which pages are complete and stand in
        the page table now. A page that changed since its copy began is not among them."""

    def release(self, ids: np.ndarray) -> None:
        """Take pages out of the page table. Nothing is copied: home always has the bytes."""

    def resize(self, n_slots: int) -> None:
        """Give the arena so many slots; pages in slots that stay are kept. No page and no copy is in a slot that goes."""

    def close(self) -> None:
        """Wait for the copies under way and forget them: the slots may be taken away afterwards."""
