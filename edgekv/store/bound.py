"""Keeps a folder within its bytes, whoever writes into it: what was not used for the longest time goes first."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from edgekv.store.blocks import Link
from edgekv.store.files import BlockFile, remove_file, scan
from edgekv.store.pins import pinned_paths, read_pins

FRESH_S = 1.0
"""What other processes wrote in so short a time may not be counted yet."""


class FolderBound:
    """For one thread."""

    def __init__(self, folder: Path, most_bytes: int, clock: Callable[[], float] = time.monotonic):
        self.folder, self.most_bytes, self._clock = folder, most_bytes, clock
        self.n_bytes = 0
        """Of all blocks in the folder, when it was last looked at, and what was written since."""
        self.n_blocks = 0
        self._looked: float | None = None

    def look(self) -> list[BlockFile]:
        """Count again; every file, the least recently used first. Raises OSError."""
        files = sorted(scan(self.folder), key=lambda file: file.used_ns)
        self.n_blocks, self.n_bytes = len(files), sum(file.n_bytes for file in files)
        self._looked = self._clock()
        return files

    def added(self, n_bytes: int) -> None:
        self.n_blocks += 1
        self.n_bytes += n_bytes

    def removed(self, n_bytes: int) -> None:
        self.n_blocks -= 1
        self.n_bytes -= n_bytes

    def make_room(self, n_bytes: int, keep: Callable[[Link], bool]) -> tuple[bool, int]:
        """Evict until `n_bytes` fit, but nothing that `keep` wants or that is pinned: whether they fit, and how many files went.

        Nothing goes where that would not be enough. Raises OSError.
        """
        if n_bytes > self.most_bytes:
            return False, 0
        if self._looked is not None and self._clock() - self._looked < FRESH_S and self.n_bytes + n_bytes <= self.most_bytes:
            return True, 0
        files = self.look()
        excess = self.n_bytes + n_bytes - self.most_bytes
        if excess <= 0:
            return True, 0
        pinned = pinned_paths(read_pins(self.folder), files)
        victims: list[BlockFile] = []
        spare = self.most_bytes // 64 if self.most_bytes // 64 >= 4 * n_bytes else 0  # or a full folder is looked at for every block
        for file in files:
            if excess <= -spare:
                break
            if file.path not in pinned and not keep(file.link):
                victims.append(file)
                excess -= file.n_bytes
        if excess > 0:
            return False, 0
        for file in victims:
            if remove_file(file.path):
                self.removed(file.n_bytes)
        return True, len(victims)
