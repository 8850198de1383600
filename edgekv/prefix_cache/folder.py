"""A place below RAM: a folder, which survives the process and which several processes share. Whichever writes keeps it within its bytes: the least recently
used blocks go first."""

import contextlib
import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from edgekv.common.enums import CacheCodec
from edgekv.prefix_cache.blocks import Block, Link, line
from edgekv.prefix_cache.coming import ComingBlock, open_block
from edgekv.prefix_cache.files import (
    BlockFile,
    links_below,
    of_one_file,
    path_of,
    read_header,
    remove_file,
    remove_temporaries,
    scan,
    write_file,
)
from edgekv.prefix_cache.format import Refused, encode
from edgekv.prefix_cache.identity import ModelIdentity
from edgekv.prefix_cache.named import Pin, asked_name, extend_pin, pinned_paths, read_pins, remove_pin
from edgekv.prefix_cache.place import Child, Outage, Outcome, Place, covered_tails, log
from edgekv.prefix_cache.place_rates import Rate, rounds
from edgekv.prefix_cache.results import PlaceStats

T = TypeVar("T")

BACK_OFF_S = 30.0
"""Seconds until a folder that was not writable is tried again."""

REMEMBERED = 4096
"""Blocks whose tokens are known without opening their files; and whose parents are, although the folder may not have them."""

FRESH_S = 1.0
"""Other processes' writes may go uncounted for this long."""


class FolderPlace(Place):
    """One model identity's part of a folder. The bound, and the blocks that `stats` counts, are those of the whole folder."""

    name = "disk"
    far = False

    def __init__(self, identity: ModelIdentity, folder: Path, most_bytes: int, ttl_s: float | None = None, codec: CacheCodec = CacheCodec.NONE):
        self.stats = PlaceStats()
        self._identity, self._root, self._folder = identity, identity.root_key(), Path(folder)
        self._reading, self._writing = (Outage(f"the folder {folder}", BACK_OFF_S, self.stats) for _ in range(2))
        self._codec, self._rate, self._ttl_s = codec, Rate(), ttl_s
        self._most_bytes = most_bytes
        self._looked: float | None = None
        self._stuck: set[Path] = set()  # what this user may not remove
        self._parents: OrderedDict[bytes, bytes] = OrderedDict()  # by key, of what room was asked for
        self._latest: dict[bytes, int] = {}  # keys of the chain used last, and its times in ns
        self._known_tokens = lru_cache(REMEMBERED)(self._tokens_of)
        self._lock = threading.Lock()  # of the following
        self._refused: dict[Path, bool] = {}  # and whether they are of other users or programs, and never written over
        self._made = self._said_full = False
        try:
            self._make_folder()
            remove_temporaries(self._folder)
            self.tidy()
            self._look()
        except OSError as error:
            self._writing.failed(_why(error))

    @property
    def working(self) -> bool:
        return self._reading.working

    @property
    def writable(self) -> bool:
        return self._writing.working

    # ---- reading ---------------------------------------------------------------------------------------------------------------------

    def have(self, links: Sequence[Link]) -> list[bool]:
        return [self._copy(link) is not None for link in links]

    def _copy(self, link: Link) -> Link | None:
        """The copy that will do, the better one if there are two."""
        return next((copy for copy in link.copies() if os.path.exists(path := self._path(copy)) and path not in self._refused), None)

    def children(self, parents: Sequence[bytes], snapshots: bool = False) -> list[list[Child]]:
        return [self._below(parent, snapshots) for parent in parents]

    def _below(self, parent: bytes, snapshots: bool) -> list[Child]:
        if not self.working:
            return []
        folder = self._folder / self._root.hex() / parent.hex()
        links = self._read(folder, partial(links_below, self._folder, self._root, parent)) or []
        found = ((link, self._read(self._path(link), partial(self._known_tokens, link))) for link in links if link.snapshot is snapshots)
        return [Child(link, tokens) for link, tokens in found if tokens is not None]

    def open(self, links: Sequence[Link]) -> list[ComingBlock | None]:
        return [self._open_one(link) for link in links]

    def _open_one(self, link: Link) -> ComingBlock | None:
        copy = self._copy(link)
        if copy is None:
            return None
        path = self._path(copy)
        reader = self._read(path, partial(open_block, path, self._root, copy, self._identity.layout, self._rate))
        if reader is None:
            return None
        self._reading.succeeded()
        header = reader.header
        return ComingBlock(header.link, header.tokens, header.layout,
                           lambda layers, out: self._read(path, partial(reader.read, layers, out)) is not None, self._rate)

    def _read(self, path: Path, read: Callable[[], T]) -> T | None:
        """The result of `read` on a file; None if it is gone, refused or unreadable."""
        if path in self._refused:
            return None
        try:
            return read()
        except FileNotFoundError:
            return None
        except Refused as refused:
            self._refuse(path, refused)
        except OSError as error:
            if of_one_file(error, self._folder):
                self._skip(path, error)
            else:
                self._reading.failed(_why(error))
        return None

    def _tokens_of(self, link: Link) -> np.ndarray:
        """Raises Refused, OSError."""
        header = read_header(self._path(link))
        if header.link != link or header.root != self._root:
            raise Refused("it is another block than its name says", damaged=True)
        return header.tokens

    def _skip(self, path: Path, error: OSError) -> None:
        self._refuse(path, Refused(f"it cannot be used ({error.strerror})", damaged=False), theirs=True)

    def _refuse(self, path: Path, refused: Refused, theirs: bool = False) -> None:
        """Skip a file from now on, and remove it if it is a damaged block of ours. The log reports the first one."""
        with self._lock:
            first, known = not self._refused, path in self._refused
            self._refused[path] = theirs or self._refused.get(path, False)
            if known:
                return
            self.stats.n_refused += 1
        if first:
            then = "removed" if refused.damaged else "left alone"
            log.warning("%s is not used and %s: %s; more such files in this folder are not reported", path, then, refused)
        if refused.damaged:
            with contextlib.suppress(OSError):
                remove_file(path)
                self._refused.pop(path, None)

    # ---- writing ---------------------------------------------------------------------------------------------------------------------

    def touch(self, chain: Sequence[Link]) -> list[Link]:
        now, lacking = time.time_ns(), []
        # Children are evicted before their parents.
        self._latest = {link.key: now - depth * 1_000_000 for depth, link in enumerate(chain)}
        for link in chain:
            there = [self._used(link.copy(rounded)) for rounded in ((False,) if link.snapshot else (False, True))]
            if not (there[0] or link.rounded and there[-1]):
                lacking.append(link)
        return lacking

    def _used(self, copy: Link, used_ns: int | None = None) -> bool:
        """A file counts as used at a time, by default that of the chain used last, or now; False: it is not there."""
        try:
            os.utime(self._path(copy), ns=(self._used_ns(copy) if used_ns is None else used_ns,) * 2)
        except FileNotFoundError:
            return False
        except OSError:  # it can be read all the same
            pass
        return True

    def _used_ns(self, link: Link) -> int:
        return self._latest.get(link.key, time.time_ns())

    def pass_over(self, links: Sequence[Link]) -> None:
        for link in links:
            self._used(link, 0)

    def pin(self, key: bytes, expires: float) -> None:
        name = asked_name(key)
        try:
            if expires:
                self._make_folder()
                extend_pin(self._folder, Pin(name, self._root, key, expires))
            else:
                remove_pin(self._folder, name)
        except OSError as error:
            self._writing.failed(_why(error))

    def tidy(self) -> None:
        """Remove what nobody used for `ttl_s` and nothing pins."""
        if self._ttl_s is None:
            return
        try:
            files = self._look()
            old = [file for file in files if file.used_ns < time.time_ns() - self._ttl_s * 1e9]
            pinned = pinned_paths(read_pins(self._folder), files) if old else set()
            for file in old:
                if file.path not in pinned and file.path not in self._stuck:
                    self._evict(file)
        except OSError as error:
            self._writing.failed(_why(error))

    def write(self, block: Block) -> Outcome:
        rounded = block.may_round and self._identity.in_f16 and rounds(self._codec, self._rate, far=False)
        if block.link.rounded or rounded:
            copy = block.link.copy(True)
            if (there := self._copy(copy)) is not None:
                self._used(there)  # or eviction takes it for as old as its file
                return Outcome.WRITTEN
            if block.link.rounded:
                return Outcome.DECLINED
        copy = block.link.copy(rounded)
        path = self._path(copy)
        if self._refused.get(path):
            return Outcome.DECLINED
        try:
            if self._made and not self._folder.is_dir():
                log.warning("the folder %s vanished with its prefixes; it is created again, and blocks in RAM are written again when they are used",
                            self._folder)
            self._make_folder()
            if path in self._refused or not path.exists():
                header, payload = encode(block, self._identity, rounded)
                n_bytes = len(header) + len(payload)
                if not self._make_room(copy, n_bytes):
                    return Outcome.DECLINED
                write_file(path, header, payload, self._used_ns(copy))
                self._counts(1, n_bytes)
                self.stats.n_written += 1
                self.stats.n_written_bytes += n_bytes
            else:
                self._used(copy)
            if not block.link.snapshot:
                self._drop_tails(block, rounded)
        except OSError as error:
            if of_one_file(error, self._folder) and self._is_theirs(path):
                self._skip(path, error)
                return Outcome.DECLINED
            self._writing.failed(_why(error))
            return Outcome.LATER
        self._refused.pop(path, None)
        self._writing.succeeded()
        return Outcome.WRITTEN

    @staticmethod
    def _is_theirs(path: Path) -> bool:
        """Whether a file in the block's place, or in its folder's, may not be written over by this user."""
        return os.path.lexists(path) or (os.path.lexists(path.parent) and not (path.parent.is_dir() and os.access(path.parent, os.W_OK | os.X_OK)))

    def _drop_tails(self, block: Block, rounded: bool) -> None:
        tails = [child.link for child in covered_tails(self._below(block.link.parent, snapshots=False), block, rounded)]
        pinned = {pin.key for pin in read_pins(self._folder)} if tails else set()
        for link in tails:
            path = self._path(link)
            with contextlib.suppress(FileNotFoundError, PermissionError):  # another process was quicker, or it is another user's
                n_bytes = path.stat().st_size
                if link.key not in pinned and remove_file(path):
                    self._counts(-1, -n_bytes)

    # ---- the bound -------------------------------------------------------------------------------------------------------------------

    def _look(self) -> list[BlockFile]:
        """List the folder again; returns every file, the least recently used first. Raises OSError."""
        files = sorted(scan(self._folder), key=lambda file: file.used_ns)
        self.stats.n_blocks, self.stats.n_bytes = len(files), sum(file.n_bytes for file in files)
        self._looked = time.monotonic()
        return files

    def recount(self) -> None:
        with contextlib.suppress(OSError):
            self._look()  # a write meanwhile goes uncounted, as another process's, until the folder is listed again

    def _counts(self, n_blocks: int, n_bytes: int) -> None:
        """So many more are there since."""
        self.stats.n_blocks += n_blocks
        self.stats.n_bytes += n_bytes

    def _evict(self, file: BlockFile) -> None:
        try:
            if remove_file(file.path):
                self._counts(-1, -file.n_bytes)
                self.stats.n_evicted += 1
        except PermissionError:
            self._stuck.add(file.path)

    def _make_room(self, link: Link, n_bytes: int) -> bool:
        """Evict until `n_bytes` of a block fit, but nothing that it follows, that belongs to the chain used last or that is pinned. Returns whether they
        fit. Nothing goes where all that may go would not be enough. Raises OSError."""
        self._parents[link.key] = link.parent
        if len(self._parents) > REMEMBERED:
            self._parents.popitem(last=False)
        while True:
            fits, victims = self._victims(link, n_bytes)
            n_stuck = len(self._stuck)
            for file in victims:
                self._evict(file)
            if len(self._stuck) == n_stuck:
                return fits
            self._looked = None

    def _victims(self, link: Link, n_bytes: int) -> tuple[bool, list[BlockFile]]:
        """Whether there will be room, and the files that must go for it."""
        most_bytes = self._most_bytes
        if n_bytes > most_bytes:
            return False, []
        if self._looked is not None and time.monotonic() - self._looked < FRESH_S and self.stats.n_bytes + n_bytes <= most_bytes:
            return True, []
        files = self._look()
        excess = self.stats.n_bytes + n_bytes - most_bytes
        if excess <= 0:
            return True, []
        pinned = pinned_paths(read_pins(self._folder), files)
        parents = self._parents | {file.link.key: file.link.parent for file in files}  # also beyond a block that found no room
        stay = {*line(link.parent, parents), *self._latest}
        victims: list[BlockFile] = []
        spare = most_bytes // 64 if most_bytes // 64 >= 4 * n_bytes else 0  # or a full folder would be listed for every block
        for file in files:
            if excess <= -spare:
                break
            if file.path not in pinned and file.path not in self._stuck and file.link.key not in stay:
                victims.append(file)
                excess -= file.n_bytes
        if excess > 0 and pinned and not self._said_full:
            self._said_full = True
            log.warning("pinned prompts fill the folder %s; others are not written until the time of these is over", self._folder)
        return (False, []) if excess > 0 else (True, victims)

    def _make_folder(self) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._made = True

    def _path(self, link: Link) -> Path:
        return path_of(self._folder, self._root, link)


def _why(error: OSError) -> str:
    """The cause of an error, as the end of a sentence that begins with the folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "is on a disk that is full"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"cannot be used ({os.strerror(error.errno).lower()}: may this user write there?)"
    return f"cannot be used ({error.strerror or error})"
