"""The RAM that stores share: which block goes when there is no room, and which may not."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from edgekv.prefix_cache.blocks import Block, Link
from edgekv.prefix_cache.held import HeldBlock
from edgekv.prefix_cache.place import Child, log
from edgekv.prefix_cache.ram import Pins, Ram
from edgekv.prefix_cache.results import Holds, StoreStats
from edgekv.prefix_cache.writer import Writer

T = TypeVar("T")


class SharedRam:
    """RAM of one store, or of several, which then evict the block that any of them used least recently. Keys of different model identities never
    meet."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        """Of everything here; every method is called with it held."""
        self.blocks = Ram()
        self.pins = Pins(self.blocks)
        self.in_use: Counter[bytes] = Counter()
        """Keys of blocks whose rows are on their way into a sequence, and how often. To evict one would free no memory, so they stay and count."""
        self.below: set[bytes] = set()
        """Keys of blocks in RAM that a place keeps too."""
        self.alone: set[bytes] = set()
        """Keys of blocks that stay in RAM alone: no place gets them."""
        self.writers: list[Writer] = []
        """Of all stores."""
        self.hurried = 0
        """Threads that wait for writers, which then do not wait for the end of answers."""
        self._said = False

    def put(self, block: Block | HeldBlock) -> float:
        """Keep a block. Pins of what it replaces are its own from now on: returns their time, 0 if there are none."""
        replaced = self.blocks.put(block)
        for link in replaced:
            self.forget(link.key)
        return max((self.pins.move(link.key, block.link.key) for link in replaced), default=0.0)

    def write(self, key: bytes, writers: Sequence[Writer] | None) -> None:
        """Let these writers have a block that was just kept; None: it stays in RAM alone."""
        if writers is None:
            self.alone.add(key)
            return
        self.alone.discard(key)
        for writer in writers:
            writer.add(key)

    def pinned_like(self, link: Link, tokens: np.ndarray) -> bytes:
        """A block beside this one that begins with these tokens, is read as well, and is pinned already; else this one. So many prompts with a common
        beginning that stays pin it once."""
        alike = (child.link.key for child in self.blocks.children(link.parent)
                 if child.link.reading <= link.reading and self.pins.until(child.link.key) and np.array_equal(child.tokens[: len(tokens)], tokens))
        return next(alike, link.key)

    def remove(self, key: bytes) -> None:
        """Evict a block."""
        self.blocks.remove(key)
        self.forget(key)

    def forget(self, key: bytes) -> None:
        """The block left RAM."""
        self.below.discard(key)
        self.alone.discard(key)
        for writer in self.writers:
            writer.discard(key)

    def to_write(self, key: bytes) -> Block | HeldBlock | None:
        """A block for a place; None: it is gone, or no place may have it."""
        return None if key in self.alone else self.blocks.get(key)

    def unwritten(self, key: bytes) -> bool:
        return any(key in writer for writer in self.writers)

    def make_room(self, n_bytes: int, most_bytes: int, chain: set[bytes], deadline: float | None, stats: StoreStats) -> bool:
        """Evict until `n_bytes` fit into `most_bytes`. Blocks in use stay, and blocks of `chain` unless they are safe below. Blocks that a place can
        still write go last, and only where waiting until `deadline` did not help. What is pinned stays unless it is safe below."""
        in_use, ram = self.in_use, self.blocks
        if ram.n_bytes + n_bytes <= most_bytes:
            return True
        stay, pinned = chain | in_use.keys(), self.pins.keys()
        while ram.n_bytes + n_bytes > most_bytes:
            if n_bytes > most_bytes:
                return False
            key = ram.oldest(lambda key: key not in stay and key not in pinned and not self.unwritten(key))
            key = key or ram.oldest(lambda key: key not in in_use and key not in pinned and key in self.below and not self.unwritten(key))
            key = key or ram.oldest(lambda key: key not in in_use and key in self.below and not self.unwritten(key))
            if key is None and deadline is not None and any(map(self.unwritten, self._keys())) and (left := deadline - time.monotonic()) > 0:
                self.hurry(lambda: self.lock.wait(left))
                pinned.update(self.pins.keys())
                continue
            if key is None:
                key = ram.oldest(lambda key: key not in stay and key not in pinned)
                if key is None:
                    self._say_full(pinned)
                    return False
                stats.n_dropped += 1
            self.remove(key)
            stats.ram.n_evicted += 1
        return True

    def hurry(self, wait: Callable[[], T]) -> T:
        """Wait for the writers."""
        self.hurried += 1
        self.lock.notify_all()
        try:
            return wait()
        finally:
            self.hurried -= 1

    def take_out(self, block: HeldBlock, stays: bool, most_bytes: int, deadline: float | None, stats: StoreStats) -> None:
        """The slot needs a block's cells: release them. Its rows are in RAM before, if there is room in `most_bytes` and the block `stays`, or a place
        is to get it. Call it without the lock. Any threads, also several."""
        key, fits = block.link.key, False
        with self.lock:
            if self.blocks.get(key) is block and (stays or key not in self.below):
                fits = self.make_room(block.n_bytes_out, most_bytes, self._line(block.link), deadline, stats)
                self.blocks.n_bytes += block.n_bytes_out * fits
        with block.lock:
            rows, payload = block.rows, None
            try:
                if rows is not None and (fits or self.in_use[key]):
                    payload = rows.read(range(block.layout.n_layers), block.n_bytes_out - block.tokens.nbytes)
                    payload.flags.writeable = False
            finally:
                with self.lock:
                    there = self.blocks.get(key) is block
                    self.blocks.n_bytes -= block.n_bytes_out * (fits and (payload is None or not there))
                    if rows is not None and there and not (fits and payload is not None):
                        stats.n_dropped += self.unwritten(key)
                        self.remove(key)
                    block.rows, block.payload = None, block.payload if rows is None else payload
                if rows is not None:
                    rows.release()

    def _line(self, link: Link) -> set[bytes]:
        """Keys of a block and of those before it that are in RAM."""
        found, block = set[bytes](), self.blocks.get(link.key)
        while block is not None:
            found.add(block.link.key)
            block = self.blocks.get(block.link.parent)
        return found

    def _say_full(self, pinned: set[bytes]) -> None:
        if pinned and not self._said:
            self._said = True
            log.warning("pinned prompts fill the RAM of kept prompts; others are not kept there until the time of these is over")

    def _keys(self) -> list[bytes]:
        return [link.key for link in self.blocks.links()]


class RamTier:
    """RAM, as a place below it is asked."""

    name = Ram.name
    far = False
    working = True

    def __init__(self, shared: SharedRam):
        self._shared, self._ram, self._lock = shared, shared.blocks, shared.lock
        self.holds = Holds()
        """Of what was opened."""

    def have(self, links: Sequence[Link]) -> list[bool]:
        with self._lock:
            found = [self._ram.get(link.key) for link in links]
            return [block is not None and block.link.will_do(link) for link, block in zip(links, found)]

    def children(self, parents: Sequence[bytes], snapshots: bool = False) -> list[list[Child]]:
        with self._lock:
            return [self._ram.children(parent, snapshots) for parent in parents]

    def open(self, links: Sequence[Link]) -> list[Block | HeldBlock | None]:
        """They stay in RAM as long as they are held."""
        with self._lock:
            found = [block if (block := self._ram.get(link.key)) is not None and block.link.will_do(link) else None for link in links]
            keys = [block.link.key for block in found if block is not None]
            self._shared.in_use.update(keys)
            self.holds.keys += keys
            return found
