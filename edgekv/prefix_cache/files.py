"""The files of blocks in a folder, without an index, so that several processes can share it, and the small ones beside them. README.md lists their names;
a process that writes a temporary one has it locked."""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from msgspec import Struct

from edgekv.common.errors import EdgeKVError
from edgekv.prefix_cache.blocks import KEY_BYTES, Link, Reading
from edgekv.prefix_cache.format import BlockHeader, Refused, decode_header, header_bytes

TEMPORARY = ".tmp-"
PINS, CONVERSATIONS = "pins", "conversations"
"""Folders of small files."""

_HEX = rf"[0-9a-f]{{{2 * KEY_BYTES}}}"
_NAME = re.compile(rf"({_HEX})-([0-9])-([0-9]{{1,3}})\.(kv|kvr|snap)")
_FOLDER = re.compile(_HEX)
_FIRST_READ = 8192
"""Most headers are shorter."""
_MOST_ATTEMPTS = 9
_MISSING = FileNotFoundError, NotADirectoryError
_NOT_OURS = *_MISSING, PermissionError
_OF_ONE_FILE = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ESTALE}


class BlockFile(Struct, frozen=True):
    """A file with a block's name, not yet opened."""

    path: Path
    root: bytes
    link: Link
    n_bytes: int
    used_ns: int
    """When it was last used: its modification time."""


def path_of(folder: Path, root: bytes, link: Link) -> Path:
    """Of the copy that is rounded, if the link is."""
    ending = "snap" if link.snapshot else "kvr" if link.rounded else "kv"
    return folder / root.hex() / link.parent.hex() / f"{link.key.hex()}-{int(link.reading)}-{link.n}.{ending}"


def temporary_name() -> str:
    """A new name each time, unique also among containers whose processes share numbers."""
    return TEMPORARY + secrets.token_hex(8)


def open_file(path: Path) -> FileIO:
    """Open a file for reading, unbuffered and without waiting. Raises Refused for anything but a plain file, OSError."""
    file = FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # a pipe would wait for a writer
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Refused("it is not a file", damaged=False)
    return file


def of_one_file(error: OSError, folder: Path) -> bool:
    """Whether an error is about one file or folder in `folder`, such as another user's, and not about all that is there."""
    return error.errno in _OF_ONE_FILE and os.access(folder, os.R_OK | os.X_OK)


def link_of(parent: bytes, name: str) -> Link | None:
    """The link that a file's name tells; None for other names."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[2]) > max(Reading):
        return None
    return Link(bytes.fromhex(match[1]), parent, Reading(int(match[2])), int(match[3]), snapshot=match[4] == "snap", rounded=match[4] == "kvr")


def links_below(folder: Path, root: bytes, parent: bytes) -> list[Link]:
    """The files of all blocks, with both copies of some, and of all snapshots that follow `parent`; none if there is no folder. Raises OSError."""
    return [link for entry in _entries(folder / root.hex() / parent.hex()) if (link := link_of(parent, entry.name)) is not None]


def scan(folder: Path) -> Iterator[BlockFile]:
    """Every file of a block or snapshot of every model, but those that vanish meanwhile, and those in folders of other users. Raises OSError where
    `folder` cannot be read."""
    for root, parent, entry in _files(folder):
        if (link := link_of(parent, entry.name)) is not None:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                found = entry.stat(follow_symlinks=False)
                yield BlockFile(Path(entry.path), root, link, found.st_size, found.st_mtime_ns)


def listed(folder: Path) -> list[BlockFile]:
    """`scan`. Raises EdgeKVError where the folder cannot be read."""
    try:
        return list(scan(folder))
    except OSError as error:
        raise EdgeKVError(f"the folder {folder} cannot be read: {error.strerror}") from None


def read_header(path: Path) -> BlockHeader:
    """Raises Refused, OSError."""
    with open_file(path) as file:
        return decode_header(first_bytes(file))


def first_bytes(file: FileIO) -> bytes:
    """A file's header, as far as it goes, and maybe more. Raises Refused, OSError."""
    data = file.read(_FIRST_READ)
    return data + file.read(max(0, header_bytes(data) - len(data)))


def write_file(path: Path, header: bytes, payload: memoryview, used_ns: int) -> None:
    """Write a file, and try again: other processes remove empty folders, and temporaries that look abandoned, while this one is about to write; and a
    name may be taken. Raises OSError."""
    for _ in range(_MOST_ATTEMPTS - 1):
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            _write_once(path, header, payload, used_ns)
            return
    _write_once(path, header, payload, used_ns)


def write_note(path: Path, content: dict[str, Any] | list[str]) -> None:
    """Write a small file, JSON in one line, in the same way. Raises OSError."""
    write_file(path, json.dumps(content).encode(), memoryview(b""), time.time_ns())


def _write_once(path: Path, header: bytes, payload: memoryview, used_ns: int) -> None:
    """Write everything to disk under another name, then rename it."""
    made = not path.parent.is_dir()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / temporary_name()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for data in (memoryview(header), payload):
            at = 0
            while at < len(data):
                at += os.write(descriptor, data[at:])
        os.utime(descriptor, ns=(used_ns, used_ns))
        os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(descriptor)
    _sync_folder(path.parent)
    if made:
        _sync_folder(path.parent.parent)


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:  # it was evicted again already
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_file(path: Path) -> bool:
    """Remove a block's file, and its folder if it was the last one; False if it was gone. Raises OSError."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    with contextlib.suppress(OSError):  # it is not empty
        path.parent.rmdir()
        path.parent.parent.rmdir()
    return True


def remove_files(files: Iterable[BlockFile]) -> int:
    """Remove files in their order; bytes of those that were there. Raises EdgeKVError."""
    with removing():
        return sum(file.n_bytes for file in files if remove_file(file.path))


@contextlib.contextmanager
def removing() -> Iterator[None]:
    """What cannot be removed raises EdgeKVError."""
    try:
        yield
    except OSError as error:
        raise EdgeKVError(f"{error.filename} cannot be removed: {error.strerror}") from None


def remove_temporaries(folder: Path) -> int:
    """Remove the unlocked temporary files, whose processes were killed while they wrote. Returns their number. Raises OSError."""
    beside = (entry for name in (PINS, CONVERSATIONS) for entry in _entries(folder / name, _NOT_OURS))
    entries = itertools.chain((entry for _, _, entry in _files(folder)), beside)
    return sum(_remove_unlocked(Path(entry.path)) for entry in entries if entry.name.startswith(TEMPORARY))


def _remove_unlocked(path: Path) -> bool:
    try:
        with open_file(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except (Refused, BlockingIOError, FileNotFoundError, PermissionError, IsADirectoryError):
        return False
    with contextlib.suppress(OSError):
        path.parent.rmdir()
    return True


def _files(folder: Path) -> Iterator[tuple[bytes, bytes, os.DirEntry[str]]]:
    """The root, the parent, and what is in the parent's folder. Raises OSError."""
    for root in _folders(_entries(folder)):
        for parent in _folders(_entries(root.path, _NOT_OURS)):
            for entry in _entries(parent.path, _NOT_OURS):
                yield bytes.fromhex(root.name), bytes.fromhex(parent.name), entry


def _folders(entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
    return [entry for entry in entries if _FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]


def _entries(folder: Path | str, none: tuple[type[OSError], ...] = _MISSING) -> list[os.DirEntry[str]]:
    """By name; none where one of these errors says that there are none. Raises OSError."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except none:
        return []
