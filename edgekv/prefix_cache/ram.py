"""The upper tier: blocks in RAM, the least recently used first, and those that may not go."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from edgekv.prefix_cache.blocks import Block, Link
from edgekv.prefix_cache.held import HeldBlock
from edgekv.prefix_cache.place import Child, covered_tails


class Ram:
    """Not thread-safe: the store locks it."""

    name = "ram"
    """As in BlockPiece.source."""

    def __init__(self) -> None:
        self.n_bytes = 0
        """Bytes of all blocks, and of those being read that will stay."""
        self._blocks: OrderedDict[bytes, Block | HeldBlock] = OrderedDict()  # the least recently used first
        self._children: dict[bytes, set[bytes]] = {}
        self._snapshots: dict[bytes, set[bytes]] = {}
        self.passed: set[bytes] = set()
        """Keys of snapshots that the newest ones of their chain make superfluous: they go first."""

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    def get(self, key: bytes) -> Block | HeldBlock | None:
        return self._blocks.get(key)

    @property
    def n_in_slots(self) -> int:
        """Blocks whose rows lie in a slot: they take no RAM yet."""
        return sum(isinstance(block, HeldBlock) and block.payload is None for block in self._blocks.values())

    def links(self) -> Iterator[Link]:
        """The least recently used first."""
        return (block.link for block in self._blocks.values())

    def children(self, parent: bytes, snapshots: bool = False) -> list[Child]:
        """The blocks that follow one; or the snapshots behind it, or a root, and fewer than BLOCK_TOKENS further tokens."""
        blocks = [self._blocks[key] for key in sorted((self._snapshots if snapshots else self._children).get(parent, ()))]
        return [Child(block.link, block.tokens) for block in blocks]

    def put(self, block: Block | HeldBlock) -> list[Link]:
        """Keep a block, which is not there or only rounded, as the most recently used one; returns what it made superfluous, which is gone: tails, and its
        rounded copy."""
        gone = [] if block.link.snapshot else [child.link for child in covered_tails(self.children(block.link.parent), block, block.link.rounded)]
        gone += [block.link] if block.link.key in self._blocks else []
        for link in gone:
            self.remove(link.key)
        self._blocks[block.link.key] = block
        self._siblings(block).setdefault(block.link.parent, set()).add(block.link.key)
        self.n_bytes += block.n_bytes
        return gone

    def remove(self, key: bytes) -> None:
        block = self._blocks.pop(key)
        self.n_bytes -= block.n_bytes
        self.passed.discard(key)
        siblings = self._siblings(block)[block.link.parent]
        siblings.remove(key)
        if not siblings:
            del self._siblings(block)[block.link.parent]

    def _siblings(self, block: Block | HeldBlock) -> dict[bytes, set[bytes]]:
        return self._snapshots if block.link.snapshot else self._children

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note that a chain was used, from the root on. Children count as less recently used than their parents, and are evicted before them."""
        for key in reversed(list(keys)):
            if key in self._blocks:
                self._blocks.move_to_end(key)

    def oldest(self, may_go: Callable[[bytes], bool]) -> bytes | None:
        """The least recently used block that may go and takes RAM; a passed snapshot before all others."""
        passed = next((key for key in self._blocks if key in self.passed and may_go(key)), None) if self.passed else None
        return passed or next((key for key, block in self._blocks.items() if block.n_bytes and may_go(key)), None)


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
                found |= {key, *(one.link.key for parent in (key, block.link.parent) for one in self._ram.children(parent, snapshots=True))}
                key = block.link.parent
        return found
