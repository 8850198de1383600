"""Keeps a folder within its bytes, whichever process writes into it: the least recently used blocks go first."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from edgekv.prefix_cache.blocks import Link
from edgekv.prefix_cache.files import BlockFile, remove_file, scan
from edgekv.prefix_cache.named import pinned_paths, read_pins
from edgekv.prefix_cache.results import PlaceStats

FRESH_S = 1.0
"""Other processes' writes may go uncounted for this long."""

REMEMBERED = 4096
"""Blocks whose parents are known although the folder may not have them."""


class FolderBound:
    """For one thread."""

    def __init__(self, folder: Path, most_bytes: int, stats: PlaceStats):
        """`stats` get the blocks that were there when the folder was last listed, with those written and removed since, and those evicted."""
        self.folder, self.most_bytes, self._stats = folder, most_bytes, stats
        self.pinned = False
        """Whether the last call of `make_room` found too little that may go, and pins."""
        self._looked: float | None = None
        self._theirs: set[Path] = set()  # what this user may not remove
        self._parents: OrderedDict[bytes, bytes] = OrderedDict()  # by key, of what room was asked for

    def look(self) -> list[BlockFile]:
        """List the folder again; returns every file, the least recently used first. Raises OSError."""
        files = sorted(scan(self.folder), key=lambda file: file.used_ns)
        self._stats.n_blocks, self._stats.n_bytes = len(files), sum(file.n_bytes for file in files)
        self._looked = time.monotonic()
        return files

    def added(self, n_bytes: int) -> None:
        self._stats.n_blocks += 1
        self._stats.n_bytes += n_bytes

    def removed(self, n_bytes: int) -> None:
        self._stats.n_blocks -= 1
        self._stats.n_bytes -= n_bytes

    def expire(self, unused_s: float) -> None:
        """Remove what nobody used for so many seconds and nothing pins. Raises OSError."""
        files = self.look()
        old = [file for file in files if file.used_ns < time.time_ns() - unused_s * 1e9]
        pinned = pinned_paths(read_pins(self.folder), files) if old else set()
        for file in old:
            if file.path not in pinned and file.path not in self._theirs:
                self._evict(file)

    def _evict(self, file: BlockFile) -> None:
        try:
            if remove_file(file.path):
                self.removed(file.n_bytes)
                self._stats.n_evicted += 1
        except PermissionError:
            self._theirs.add(file.path)

    def make_room(self, link: Link, n_bytes: int, keep: Callable[[Link], bool]) -> bool:
        """Evict until `n_bytes` of a block fit, but nothing that it follows, that `keep` wants or that is pinned. Returns whether they fit. Nothing goes
        where all that may go would not be enough. Raises OSError."""
        self._parents[link.key] = link.parent
        if len(self._parents) > REMEMBERED:
            self._parents.popitem(last=False)
        while True:
            fits, victims = self._victims(link, n_bytes, keep)
            n_theirs = len(self._theirs)
            for file in victims:
                self._evict(file)
            if len(self._theirs) == n_theirs:
                return fits
            self._looked = None

    def _victims(self, link: Link, n_bytes: int, keep: Callable[[Link], bool]) -> tuple[bool, list[BlockFile]]:
        """Whether there will be room, and the files that must go for it."""
        if n_bytes > self.most_bytes:
            return False, []
        if self._looked is not None and time.monotonic() - self._looked < FRESH_S and self._stats.n_bytes + n_bytes <= self.most_bytes:
            return True, []
        files = self.look()
        excess = self._stats.n_bytes + n_bytes - self.most_bytes
        if excess <= 0:
            return True, []
        pinned, above = pinned_paths(read_pins(self.folder), files), self._above(link, files)
        victims: list[BlockFile] = []
        spare = self.most_bytes // 64 if self.most_bytes // 64 >= 4 * n_bytes else 0  # or a full folder would be listed for every block
        for file in files:
            if excess <= -spare:
                break
            if file.path not in pinned and file.path not in self._theirs and file.link.key not in above and not keep(file.link):
                victims.append(file)
                excess -= file.n_bytes
        self.pinned = excess > 0 and bool(pinned)
        return (False, []) if excess > 0 else (True, victims)

    def _above(self, link: Link, files: Sequence[BlockFile]) -> set[bytes]:
        """The keys of what a block follows: also beyond a block that found no room."""
        parents = self._parents | {file.link.key: file.link.parent for file in files}
        above: set[bytes] = set()
        key: bytes | None = link.parent
        while key is not None and key not in above:
            above.add(key)
            key = parents.get(key)
        return above
