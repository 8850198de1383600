"""The KV homes on disk of this process: where they are mapped, what of them is in memory, and how to let it go."""

import ctypes
import mmap
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
