"""The interface of a place below RAM; and how a failing place is left alone for a while."""

import enum
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from edgekv.common.enums import MissReason
from edgekv.prefix_cache.blocks import Block, KeptBlock, Link, child_link
from edgekv.prefix_cache.coming import ComingBlock
from edgekv.prefix_cache.results import PlaceStats

log = logging.getLogger("edgekv")


class Child(NamedTuple):
    """A block that a place has, without its rows."""

    link: Link
    tokens: np.ndarray
    """int32 [n]."""


class Outcome(enum.Enum):
    """The outcome of a write."""

    WRITTEN = enum.auto()
    """The block is there, now or from before."""
    DECLINED = enum.auto()
    """The place has no room for it within its bound, and will not have it."""
    LATER = enum.auto()
    """The place is out of order at present."""


class Tier(Protocol):
    """What has blocks and snapshots of a model identity. No method raises: a failure is a miss, which is counted, and logged once. Any thread calls these."""

    name: str
    """As in BlockPiece.source."""
    far: bool
    """Calls are dear, as another machine answers them: one asks for many blocks, and no answer waits for it."""

    @property
    def working(self) -> bool:
        """False while it is left alone after a failure; it then has nothing."""

    def have(self, links: Sequence[Link]) -> list[bool]:
        """Whether there is a copy of each that will do."""

    def children(self, parents: Sequence[bytes], snapshots: bool = False) -> list[list[Child]]:
        """The blocks that follow each of some blocks, or roots: tails and rounded copies too. snapshots: instead those that hang on each."""

    def open(self, links: Sequence[Link]) -> Sequence[KeptBlock | ComingBlock | None]:
        """Blocks and snapshots that can be read, in the order of `links`; None for a block that is missing or was refused."""


class Place(Tier, Protocol):
    """A tier below RAM. One thread calls `write`, `pass_over`, `pin`, `tidy` and `touch`."""

    stats: PlaceStats

    @property
    def writable(self) -> bool:
        """False while writing pauses after a failure."""

    def write(self, block: Block) -> Outcome:
        """Keep a block, maybe rounded, and drop the tails that it continues; or a snapshot. What was rounded once is not rounded again."""

    def pass_over(self, links: Sequence[Link]) -> None:
        """Snapshots that newer ones make superfluous: they go before everything else, unless they are used again."""
        return

    def pin(self, key: bytes, expires: float) -> None:
        """The chain to this block stays until then, in seconds since 1970, or longer if it does so already; 0: no longer."""
        return

    def tidy(self) -> None:
        """Called now and then."""
        return

    def recount(self) -> None:
        """Somebody else removed blocks of it. Any thread calls this."""
        return

    def touch(self, chain: Sequence[Link]) -> list[Link]:
        """Note that a chain was used, from its root on; returns the links that the place lacks. No write evicts a block of it until the next call."""

    def close(self) -> None:
        """End threads and connections."""
        return


def covered_tails(children: Iterable[Child], block: Block | KeptBlock, rounded: bool = False) -> list[Child]:
    """The children of the block's parent that the block makes superfluous: tails that it begins with, whose reading is worse, or the same with the
    same settings. rounded: only a rounded copy of the block is there, which replaces only such copies."""
    return [child for child in children
            if (child.link.rounded or not rounded) and child.link.n < block.link.n and np.array_equal(child.tokens, block.tokens[: child.link.n])
            and (child.link.reading > block.link.reading
                 or child.link == child_link(block.link.parent, block.link.reading, child.tokens, block.link.read_with))]


def unreadable(places: Iterable[Place]) -> MissReason:
    """Why rows cannot be read: they are damaged, or a place cannot be used now."""
    return MissReason.DAMAGED if all(place.working for place in places) else MissReason.TIER_DOWN


class Outage:
    """Whether a place works. The log tells once when it fails, and once when it works again; in between it is tried every `back_off_s`."""

    def __init__(self, what: str, back_off_s: float, stats: PlaceStats, clock: Callable[[], float] = time.monotonic):
        self.what, self._back_off_s, self._stats, self._clock = what, back_off_s, stats, clock
        self._lock = threading.Lock()
        self._failed = False
        self._until = 0.0

    @property
    def working(self) -> bool:
        return not self._failed or self._clock() >= self._until

    def failed(self, why: str) -> None:
        """Leave the place alone for a while. `why` ends a sentence that begins with its name."""
        with self._lock:
            first, self._failed = not self._failed, True
            self._until = self._clock() + self._back_off_s
            self._stats.n_errors += 1
        if first:
            log.warning("%s %s; prefixes stay in RAM, and it is tried again every %.0f s", self.what, why, self._back_off_s)

    def succeeded(self) -> None:
        if not self._failed:
            return
        with self._lock:
            again, self._failed = self._failed, False
        if again:
            log.warning("%s works again", self.what)
