"""The KV homes on disk of this process: where they are mapped, what of them is in memory, and how to let it go."""

import ctypes
import mmap
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np

_PAGEOUT, _MS_SYNC = 21, 4

_libc = ctypes.CDLL(None, use_errno=True)


def homes() -> list[tuple[int, int]]:
    """Begin and end of the mappings of this process's homes."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "edgekv-home-" in line:
            assert line.endswith("(deleted)")
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


def in_process(code: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """`code` in a process of its own; sys.argv[1] is the folder of the tests' support."""
    tests = Path(__file__).resolve().parent.parent
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tests), *map(str, arguments)], capture_output=True, text=True,
                          timeout=300, env={**os.environ, **variables})
