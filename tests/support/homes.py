"""Memory of this process: KV homes on disk, where they are mapped, what of them is in memory and how to let it go; bytes that are its own; what is free."""

import ctypes
import mmap
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

_PAGEOUT, _MS_SYNC = 21, 4
_PRESENT, _EXCLUSIVE = 1 << 63, 1 << 56  # the kernel's page of zeros is present, and everybody's

_libc = ctypes.CDLL(None, use_errno=True)


def homes() -> list[tuple[int, int]]:
    """Begin and end of the mappings of this process's homes."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "edgekv-home-" in line:
            assert line.endswith("(deleted)") and line.split()[1] == "rw-s", "what is written is the file's"
            first, end = line.split()[0].split("-")
            found.append((int(first, 16), int(end, 16)))
    return found


def n_resident() -> int:
    """Pages of the homes that are in memory."""
    n = 0
    for first, end in homes():
        seen = (ctypes.c_ubyte * ((end - first) // mmap.PAGESIZE))()
        assert _libc.mincore(ctypes.c_void_p(first), ctypes.c_size_t(end - first), seen) == 0
        n += int((np.frombuffer(seen, np.uint8) & 1).sum())
    return n


def page_out() -> None:
    for first, end in homes():
        assert _libc.msync(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _MS_SYNC) == 0
        _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _PAGEOUT)


def at_random() -> list[bool]:
    """Whether the kernel was told not to read ahead there."""
    found, inside = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split()[0].count("-") == 1 and not line.startswith("VmFlags"):
            inside = "edgekv-home-" in line
        elif inside and line.startswith("VmFlags:"):
            found.append("rr" in line.split())
    return found


def files_of_homes() -> list[os.stat_result]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if "edgekv-home-" in name:
            found.append(os.stat(f"/proc/self/fd/{number}"))
    return found


def resident_bytes(array: np.ndarray) -> int:
    """Bytes of the system's own pages that hold a part of the array's memory, gaps between strides included, as the kernel's page map says."""
    page = resource.getpagesize()
    first = array.__array_interface__["data"][0]
    end = first + sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    n_pages = -(-end // page) - first // page
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(first // page * 8)
        entries = np.frombuffer(file.read(8 * n_pages), np.uint64)
    own = np.uint64(_PRESENT | _EXCLUSIVE)
    return page * int(np.count_nonzero(entries & own == own))


def in_process(code: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """`code` in a process of its own; sys.argv[1] is the folder of the tests' support."""
    tests = Path(__file__).resolve().parent.parent
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tests), *map(str, arguments)], capture_output=True, text=True,
                          timeout=300, env={**os.environ, **variables})


LITTLE = 16 << 20
"""Less than a program has left for everything else when a cache stops to grow."""


@pytest.fixture
def free() -> Iterator[SimpleNamespace]:
    """How many `bytes` this process is told are free, and how often it asked (`n_asked`). The first server of a process tells it the machine's anew."""
    from edgekv._native import core
    from edgekv.planning.available import available_bytes

    said = SimpleNamespace(bytes=1 << 40, n_asked=0)

    def tell() -> int:
        said.n_asked += 1
        return said.bytes

    said.tell = lambda: core.set_free_bytes(tell)
    said.tell()
    yield said
    core.set_free_bytes(available_bytes)
