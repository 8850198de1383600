"""The peak memory of this process, and what it counts while a pass runs."""

import contextlib
import mmap
import resource
import sys
from collections.abc import Callable
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


COUNTED: dict[str, Callable[[], float | None]] = {
    "disk_pages": lambda: None if (n := _count("io", "read_bytes")) is None else n / mmap.PAGESIZE,
}
"""What passes count besides time, of all threads: pages that came from disks, not those that were in memory. None: this system does not count it."""


class Counts:
    """Adds up what `COUNTED` counts between `begin` and `end`."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self._before: dict[str, float | None] = {}

    def begin(self) -> None:
        self._before = {name: count() for name, count in COUNTED.items()}

    def end(self) -> None:
        for name, before in self._before.items():
            if before is not None and (now := COUNTED[name]()) is not None:
                self.sums[name] = self.sums.get(name, 0.0) + now - before
