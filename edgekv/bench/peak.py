"""The peak memory of this process."""

import contextlib
import resource
import sys
from pathlib import Path

from edgekv._native import device_calls
from edgekv.common.enums import DeviceKind
from edgekv.common.units import MIB

_RESET = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class Peak:
    """The peak since this object was made if the system can restart its count (Linux), otherwise since the process began. It covers all modes
    together, because their contexts exist side by side."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            _RESET.write_text("5")
        self.vram_mib: float | None = None
        """The highest use of the first GPU that `look` saw; None without one."""

    @property
    def ram_mib(self) -> float:
        try:
            lines = _STATUS.read_text().splitlines()
            return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))
        except (OSError, StopIteration, ValueError):
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return most / MIB if sys.platform == "darwin" else most / 1024

    def look(self) -> None:
        if device_calls.count(DeviceKind.CUDA):
            there = device_calls.info(DeviceKind.CUDA)
            self.vram_mib = max(self.vram_mib or 0.0, (there.total_bytes - there.free_bytes) / MIB)
