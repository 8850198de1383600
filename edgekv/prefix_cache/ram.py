"""The upper tier: blocks in RAM, the least recently used first, which of them go when there is no room, and which may not."""

import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

import numpy as np

from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Conversation, HeldRows, KeptBlock, Link, read_only
from edgekv.prefix_cache.place import Child, covered_tails, log
from edgekv.prefix_cache.results import Holds, StoreStats
from edgekv.prefix_cache.writer import Writer

T = TypeVar("T")

N_NEWEST = 3
"""Snapshots of a chain that do not make each other superfluous: a turn takes up to so many, and which one the next turn needs is not known."""


class Ram:
    """RAM of one store, or of several, which then evict the block that any of them used least recently. Keys of different model identities never
    meet."""

    name, far, working = "ram", False, True

    def __init__(self) -> None:
        self.lock = threading.Condition()
        """Of everything here; every method but `take_out` and those of a `Tier` is called with it held."""
        self.n_bytes = 0
        """Bytes of all blocks, and of those being read that will stay."""
        self._blocks: OrderedDict[bytes, KeptBlock] = OrderedDict()  # the least recently used first
        self._following: dict[tuple[bytes, bool], set[bytes]] = {}  # by parent, blocks or snapshots
        self.passed: set[bytes] = set()
        """Keys of snapshots that the newest ones of their chain make superfluous: they go first."""
        self.pins = Pins(self)
        self.in_use: Counter[bytes] = Counter()
        """Keys of blocks whose rows are on their way into a sequence, and how often. To evict one would free no memory, so they stay and count."""
        self.below: set[bytes] = set()
        """Keys of blocks that a place keeps too."""
        self.alone: set[bytes] = set()
        """Keys of blocks that stay in RAM alone: no place gets them."""
        self.writers: list[Writer] = []
        """Of all stores."""
        self.hurried = 0
        """Threads that wait for writers, which then do not wait for the end of answers."""
        self._said = False

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    def get(self, key: bytes) -> KeptBlock | None:
        return self._blocks.get(key)

    @property
    def n_in_slots(self) -> int:
        """Blocks whose rows lie in a slot: they take no RAM yet."""
        return sum(not block.n_bytes for block in self._blocks.values())

    def links(self) -> Iterator[Link]:
        """The least recently used first."""
        return (block.link for block in self._blocks.values())

    def following(self, parent: bytes, snapshots: bool = False) -> list[Child]:
        """The blocks that follow one; or the snapshots behind it, or a root, and fewer than BLOCK_TOKENS further tokens."""
        blocks = [self._blocks[key] for key in sorted(self._following.get((parent, snapshots), ()))]
        return [Child(block.link, block.tokens) for block in blocks]

    def put(self, block: KeptBlock) -> float:
        """Keep a block, which is not there or only rounded, as the most recently used one. What it makes superfluous goes: tails, and its rounded copy.
        Their pins are its own from now on: returns their time, 0 if there are none."""
        gone = [] if block.link.snapshot else [child.link for child in covered_tails(self.following(block.link.parent), block, block.link.rounded)]
        gone += [block.link] if block.link.key in self._blocks else []
        for link in gone:
            self.remove(link.key)
        self._blocks[block.link.key] = block
        self._following.setdefault((block.link.parent, block.link.snapshot), set()).add(block.link.key)
        self.n_bytes += block.n_bytes
        return max((self.pins.move(link.key, block.link.key) for link in gone), default=0.0)

    def remove(self, key: bytes) -> None:
        block = self._blocks.pop(key)
        self.n_bytes -= block.n_bytes
        siblings = self._following[where := (block.link.parent, block.link.snapshot)]
        siblings.remove(key)
        if not siblings:
            del self._following[where]
        for keys in (self.passed, self.below, self.alone):
            keys.discard(key)
        for writer in self.writers:
            writer.discard(key)

    def remove_all(self, keys: Iterable[bytes]) -> None:
        """Blocks, all that follow them, and every snapshot that may follow them."""
        pending = list(keys)
        while pending:
            key = pending.pop()
            pending += [child.link.key for snapshots in (False, True) for child in self.following(key, snapshots)]
            if key in self:
                self.remove(key)
        for key in self.loose_snapshots():
            self.remove(key)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note that a chain was used, from the root on. Children count as less recently used than their parents, and are evicted before them."""
        for key in reversed(list(keys)):
            if key in self._blocks:
                self._blocks.move_to_end(key)

    def pass_over(self, chain: Sequence[Link], of: Conversation) -> list[Link]:
        """Note the snapshots of a conversation's chain that N_NEWEST others follow, counting the new one at its end: they are the least useful. Returns
        those that were not noted before."""
        on_chain: dict[int, list[Link]] = defaultdict(list)
        for i, parent in enumerate([of.root, *(link.key for link in chain[:-1])]):
            first = i * BLOCK_TOKENS
            for one in self.following(parent, snapshots=True):
                if first + one.link.n < len(of.tokens) and np.array_equal(one.tokens, of.tokens[first : first + one.link.n]):
                    on_chain[first + one.link.n].append(one.link)
        passed = [link for position in sorted(on_chain, reverse=True)[N_NEWEST - 1 :] for link in on_chain[position] if link.key not in self.passed]
        self.passed.update(link.key for link in passed)
        return passed

    def loose_snapshots(self) -> list[bytes]:
        """Keys of those whose last tokens no block has."""
        snapshots = [block for block in self._blocks.values() if block.link.snapshot and block.link.n]
        return [one.link.key for one in snapshots
                if not any(np.array_equal(child.tokens[: one.link.n], one.tokens) for child in self.following(one.link.parent))]

    def pinned_like(self, link: Link, tokens: np.ndarray) -> bytes:
        """A block beside this one that begins with these tokens, is read as well, and is pinned already; else this one. So many prompts with a common
        beginning that stays pin it once."""
        alike = (child.link.key for child in self.following(link.parent)
                 if child.link.reading <= link.reading and self.pins.until(child.link.key) and np.array_equal(child.tokens[: len(tokens)], tokens))
        return next(alike, link.key)

    # ---- as a tier ---------------------------------------------------------------------------------------------------------------------

    def have(self, links: Sequence[Link]) -> list[bool]:
        with self.lock:
            return [self._serving(link) is not None for link in links]

    def children(self, parents: Sequence[bytes], snapshots: bool = False) -> list[list[Child]]:
        with self.lock:
            return [self.following(parent, snapshots) for parent in parents]

    def open(self, links: Sequence[Link]) -> list[KeptBlock | None]:
        """They are in use until the caller says otherwise (`Holds`)."""
        with self.lock:
            found = [self._serving(link) for link in links]
            self.in_use.update(block.link.key for block in found if block is not None)
            return found

    def let_go(self, holds: Holds) -> None:
        """They are no longer in use, and their room is free."""
        self.n_bytes -= holds.n_bytes
        self.in_use -= Counter(holds.keys)
        holds.keys, holds.n_bytes = [], 0

    def _serving(self, link: Link) -> KeptBlock | None:
        block = self._blocks.get(link.key)
        return block if block is not None and (link.rounded or not block.link.rounded) else None

    # ---- writers -----------------------------------------------------------------------------------------------------------------------

    def write(self, key: bytes, writers: Sequence[Writer] | None) -> None:
        """Let these writers have a block that was just kept; None: it stays in RAM alone."""
        if writers is None:
            self.alone.add(key)
            return
        self.alone.discard(key)
        for writer in writers:
            writer.add(key)

    def to_write(self, key: bytes) -> KeptBlock | None:
        """A block for a place; None: it is gone, or no place may have it."""
        return None if key in self.alone else self._blocks.get(key)

    def unwritten(self, key: bytes) -> bool:
        return any(key in writer for writer in self.writers)

    def hurry(self, wait: Callable[[], T]) -> T:
        """Wait for the writers."""
        self.hurried += 1
        self.lock.notify_all()
        try:
            return wait()
        finally:
            self.hurried -= 1

    # ---- room --------------------------------------------------------------------------------------------------------------------------

    def make_room(self, n_bytes: int, most_bytes: int, chain: set[bytes], deadline: float | None, stats: StoreStats) -> bool:
        """Evict until `n_bytes` fit into `most_bytes`. Blocks in use stay, and blocks of `chain` unless they are safe below. Blocks that a place can
        still write go last, and only where waiting until `deadline` did not help. What is pinned stays unless it is safe below."""
        in_use = self.in_use
        if self.n_bytes + n_bytes <= most_bytes:
            return True
        stay, pinned = chain | in_use.keys(), self.pins.keys()
        while self.n_bytes + n_bytes > most_bytes:
            if n_bytes > most_bytes:
                return False
            key = self._oldest(lambda key: key not in stay and key not in pinned and not self.unwritten(key))
            key = key or self._oldest(lambda key: key not in in_use and key not in pinned and key in self.below and not self.unwritten(key))
            key = key or self._oldest(lambda key: key not in in_use and key in self.below and not self.unwritten(key))
            if key is None and deadline is not None and any(map(self.unwritten, self._blocks)) and (left := deadline - time.monotonic()) > 0:
                self.hurry(lambda: self.lock.wait(left))
                pinned.update(self.pins.keys())
                continue
            if key is None:
                key = self._oldest(lambda key: key not in stay and key not in pinned)
                if key is None:
                    self._say_full(pinned)
                    return False
                stats.n_dropped += 1
            self.remove(key)
            stats.ram.n_evicted += 1
        return True

    def _oldest(self, may_go: Callable[[bytes], bool]) -> bytes | None:
        """The least recently used block that may go and takes RAM; a passed snapshot before all others."""
        passed = next((key for key in self._blocks if key in self.passed and may_go(key)), None) if self.passed else None
        return passed or next((key for key, block in self._blocks.items() if block.n_bytes and may_go(key)), None)

    def take_out(self, block: KeptBlock, stays: bool, most_bytes: int, deadline: float | None, stats: StoreStats) -> None:
        """The slot needs a block's cells: release them, and have a copy of its rows in RAM before, unless they are parked and so have left the cells
        already. They stay if there is room in `most_bytes` and the block `stays`, or a place is to get it. Call it without the lock. Any threads, also
        several."""
        try:
            self._take_out(block, stays, most_bytes, deadline, stats)
        except BaseException:  # their holder releases them, and nobody is to find the block
            with block.lock, self.lock:
                block.rows = None
                if self.get(block.link.key) is block:
                    self.remove(block.link.key)
            raise

    def _take_out(self, block: KeptBlock, stays: bool, most_bytes: int, deadline: float | None, stats: StoreStats) -> None:
        key, n_bytes, fits = block.link.key, block.layout.block_bytes(block.link.n) + block.tokens.nbytes, False
        with self.lock:
            if self.get(key) is block and not block.n_bytes and (stays or key not in self.below):
                fits = self.n_bytes + n_bytes <= most_bytes or self.make_room(n_bytes, most_bytes, self._line(block.link), deadline, stats)
                self.n_bytes += n_bytes * fits
        with block.lock:
            rows, payload = None if block.n_bytes else block.rows, None
            parked = rows is not None and rows.parked
            try:
                if rows is not None and not parked and (fits or self.in_use[key]):
                    payload = read_only(rows.read(range(block.layout.n_layers), n_bytes - block.tokens.nbytes))
            finally:
                with self.lock:
                    there = self.get(key) is block
                    out = fits and there and (parked or payload is not None)
                    self.n_bytes -= n_bytes * (fits and not out)
                    if rows is not None:
                        if there and not out:
                            stats.n_dropped += self.unwritten(key)
                            self.remove(key)
                        keeps = parked and (out or self.in_use[key] > 0)
                        block.rows, block.payload = rows if keeps else None, payload
                        block.n_bytes = n_bytes * out
                if rows is not None and not keeps:
                    rows.release()

    def put_back(self, blocks: Sequence[KeptBlock], cells: Sequence[np.ndarray],
                 put: Callable[[list[HeldRows], list[np.ndarray]], Sequence[bool]]) -> list[bool]:
        """Which blocks' rows go back into a slot: those that are parked, and that `put` brings into their cells (uint32 [n] each). They take no RAM there.
        Call it without the lock, on the decoding thread."""
        with ExitStack() as locks:
            for block in blocks:
                locks.enter_context(block.lock)
            parked = [(i, block.rows) for i, block in enumerate(blocks) if block.rows is not None and block.rows.parked]
            found = put([rows for _, rows in parked], [cells[i] for i, _ in parked]) if parked else []
            back = {i for (i, _), is_back in zip(parked, found) if is_back}
            with self.lock:
                for i in back:
                    self.n_bytes -= blocks[i].n_bytes * (self.get(blocks[i].link.key) is blocks[i])
                    blocks[i].n_bytes = 0
        return [i in back for i in range(len(blocks))]

    def _line(self, link: Link) -> set[bytes]:
        """Keys of a block and of those before it that are in RAM."""
        found, block = set[bytes](), self.get(link.key)
        while block is not None:
            found.add(block.link.key)
            block = self.get(block.link.parent)
        return found

    def _say_full(self, pinned: set[bytes]) -> None:
        if pinned and not self._said:
            self._said = True
            log.warning("pinned prompts fill the RAM of kept prompts; others are not kept there until the time of these is over")


class Pins:
    """Chains that stay until their time is over, even unused. Not thread-safe, like Ram."""

    def __init__(self, ram: Ram, clock: Callable[[], float] = time.time):
        self._ram, self._clock = ram, clock
        self._until: dict[bytes, float] = {}  # by the key of a chain's last block

    def add(self, key: bytes, expires: float) -> float:
        """The chain to this block stays until then, in seconds since 1970, or longer if it does so already. Returns the time that holds."""
        self._until[key] = max(expires, self._until.get(key, 0.0))
        return self._until[key]

    def remove(self, key: bytes) -> None:
        self._until.pop(key, None)

    def move(self, key: bytes, to: bytes) -> float:
        """A longer block takes the place of a chain's last one; returns the time of its pin, 0 if there is none."""
        expires = self._until.pop(key, 0.0)
        return self.add(to, expires) if expires else 0.0

    def until(self, key: bytes) -> float:
        """The time of the pin that ends in this block; 0: there is none, or its time is over."""
        expires = self._until.get(key, 0.0)
        return expires if expires > self._clock() else 0.0

    def keys(self) -> set[bytes]:
        """All blocks and snapshots in RAM on pinned chains."""
        now = self._clock()
        self._until = {key: expires for key, expires in self._until.items() if expires > now}
        found: set[bytes] = set()
        for last in self._until:
            key = last
            while key not in found and (block := self._ram.get(key)) is not None:
                found |= {key, *(one.link.key for parent in (key, block.link.parent) for one in self._ram.following(parent, snapshots=True))}
                key = block.link.parent
        return found
