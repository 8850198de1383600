"""A disk and a process that fail when a test says so, and what the log says of it."""

import errno
import logging
import os
import struct
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from edgekv.prefix_cache.format import VERSION

WRITES = ("open", "write", "fsync", "replace", "utime", "unlink", "rmdir", "mkdir")
"""Calls of `os` that change a disk; `open` where it makes a file."""


def _makes_a_file(arguments: tuple) -> bool:
    return len(arguments) > 1 and bool(arguments[1] & os.O_CREAT)


@contextmanager
def _each(names: Collection[str], before: Callable[[str, Callable, tuple], None]) -> Iterator[None]:
    """`before(name, works, arguments)` runs before each of these calls, and may raise."""
    def wrapped(name: str) -> Callable:
        works = getattr(os, name)

        def call(*arguments: Any, **more: Any) -> Any:
            before(name, works, arguments)
            return works(*arguments, **more)

        return call

    with ExitStack() as patched:
        for name in names:
            patched.enter_context(patch.object(os, name, wrapped(name)))
        yield


@contextmanager
def failing(names: Collection[str], number: int) -> Iterator[None]:
    """The disk cannot be written to: these of WRITES fail."""
    def fail(name: str, _works: Callable, arguments: tuple) -> None:
        if name != "open" or _makes_a_file(arguments):
            raise OSError(number, os.strerror(number))

    with _each(names, fail):
        yield


@contextmanager
def theirs(paths: Collection[Path], number: int = errno.EACCES) -> Iterator[None]:
    """These files are another user's, also for tests that root runs: nobody can open, rename or remove them or what these folders hold."""
    def refuse(_name: str, _works: Callable, arguments: tuple) -> None:
        touched = {Path(os.fsdecode(one)) for one in arguments if isinstance(one, str | bytes | os.PathLike)}
        if any(one in paths or one.parent in paths for one in touched):
            raise OSError(number, os.strerror(number), str(arguments[0]))

    with _each(("open", "scandir", "listdir", "unlink", "replace", "utime"), refuse):
        yield


class Killed(BaseException):
    """The process ended."""


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """The process ends when its writers change the disk for the step-th time, a write in its middle: nothing reaches the disk afterwards."""
    n_steps = 0

    def die(name: str, works: Callable, arguments: tuple) -> None:
        nonlocal n_steps
        if threading.current_thread().name.startswith("edgekv-write") and (name != "open" or _makes_a_file(arguments)):
            n_steps += 1
            if n_steps == step and name == "write":
                works(arguments[0], arguments[1][: len(arguments[1]) // 2])
            if n_steps >= step:
                raise Killed

    with _each(WRITES, die):
        yield


@contextmanager
def said() -> Iterator[list[str]]:
    """What the log says from now on."""
    handler, messages = logging.Handler(logging.WARNING), list[str]()
    handler.emit = lambda record: messages.append(record.getMessage() + (f": {record.exc_info[1]!r}" if record.exc_info else ""))
    logging.getLogger("edgekv").addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger("edgekv").removeHandler(handler)


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "rows": flip(-20), "last byte": flip(-1), "header": flip(40), "header's checksum": flip(16), "length of its header": flip(15),
    "cut": lambda data: data[: len(data) // 2], "cut in its header": lambda data: data[:30], "empty": lambda data: b"",
    "one byte short": lambda data: data[:-1], "one byte long": lambda data: data + b"x",
    "another program's": lambda data: b"PNG" + data[3:], "another version's": lambda data: data[:8] + struct.pack("<I", VERSION - 1) + data[12:]}
"""What becomes of a file. The last two are left alone until a block of their name is written; others are removed."""

OBSTACLES: dict[str, Callable[[Path], object]] = {"a pipe": os.mkfifo, "a folder": lambda path: (path / "mine").mkdir(parents=True)}
"""What lies in its place. A folder is not written over."""

DENIED = {"another user's": errno.EACCES, "forbidden": errno.EPERM, "a circle of links": errno.ELOOP}
