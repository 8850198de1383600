"""The peak memory of this process, and what it reads from disks."""

import contextlib
import mmap
import resource
import sys
from pathlib import Path

from edgekv._native import device_calls
from edgekv.common.enums import DeviceKind
from edgekv.common.units import MIB

_OWN = Path("/proc/self")


def _count(file: str, name: str) -> int | None:
    """The number of that line of a file of Linux; None where there is none."""
    try:
        return next(int(line.split()[1]) for line in (_OWN / file).read_text().splitlines() if line.startswith(f"{name}:"))
    except (OSError, StopIteration, ValueError):
        return None


class Peak:
    """The peak since this object was made if the system can restart its count (Linux), otherwise since the process began. It covers all modes
    together, because their contexts exist side by side."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            (_OWN / "clear_refs").write_text("5")
        self.vram_mib: float | None = None
        """The highest use of the first GPU that `look` saw; None without one."""

    @property
    def ram_mib(self) -> float:
        most = _count("status", "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (MIB if sys.platform == "darwin" else 1024)

    def look(self) -> None:
        if device_calls.count(DeviceKind.CUDA):
            there = device_calls.info(DeviceKind.CUDA)
            self.vram_mib = max(self.vram_mib or 0.0, (there.total_bytes - there.free_bytes) / MIB)


class DiskReads:
    """Adds up the pages that all threads of this process read from disks between `begin` and `end`: those that were in memory count nothing."""

    def __init__(self) -> None:
        self.n_pages: float | None = 0.0
        """None: the system does not count them."""
        self._before: int | None = None

    def begin(self) -> None:
        self._before = _count("io", "read_bytes")

    def end(self) -> None:
        now = _count("io", "read_bytes")
        if self.n_pages is None or self._before is None or now is None:
            self.n_pages = None
        else:
            self.n_pages += (now - self._before) / mmap.PAGESIZE
