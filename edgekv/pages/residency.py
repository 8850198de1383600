"""The states of pages, the reasons for them, and a read-only view of both for decisions."""

from enum import IntEnum

import numpy as np
from msgspec import Struct

from edgekv.pages.shape import PageShape


class State(IntEnum):
    """A page's place in its life."""

    FREE = 0
    FILLING = 1
    HOME = 2
    RESIDENT = 3
    MOVING = 4


class Reason(IntEnum):
    """The reason of a page's state: NAME = value, description."""

    _value_: int
    description: str

    def __new__(cls, value: int, description: str = ""):
        member = int.__new__(cls, value)
        member._value_, member.description = value, description
        return member

    EMPTY = 0, "holds no tokens"
    STORED = 1, "tokens are being stored in it"
    SETTLED = 2, "no policy asked for it yet"
    HOT = 3, "its score is high"
    PINNED = 4, "it is pinned"
    WANTED = 5, "prefetch expects it to be wanted"
    OUTRANKED = 6, "another page is worth more"
    BUDGET = 7, "the budget became smaller"
    CHANGED = 8, "its tokens changed while it was being copied"
    FAILED = 9, "its copy failed"
    ROOM = 10, "there was room for it"


class Residency(Struct, frozen=True):
    """A read-only view of a page table. It changes with the table: get a new one for each decision."""

    shape: PageShape
    state: np.ndarray
    """uint8 State [layer, head, page]."""
    slot: np.ndarray
    """int32 [layer, head, page]: the slot that a RESIDENT page has or a MOVING page will have; -1: none."""
    owner: np.ndarray
    """int64 [slot]: flat id of the page in the slot or on the way to it; -1: free."""
    n_free: int
    n_used_end: int
    """All pages from this one on are FREE."""

    @property
    def n_slots(self) -> int:
        return len(self.owner)

    @property
    def resident(self) -> np.ndarray:
        """int64 [n]: ids of the RESIDENT pages, ascending."""
        return np.flatnonzero(self.state == State.RESIDENT)


def pins_of(pinned: np.ndarray, ids: np.ndarray, n_pages: int) -> np.ndarray:
    """bool [n]: whether the pages `ids` are pinned. pinned: as `Policy.pins`."""
    return pinned[ids % n_pages] if pinned.ndim == 1 else pinned.reshape(-1)[ids]
