"""The most memory that this process had at once."""

import contextlib
import resource
import sys
from pathlib import Path

from edgekv._native import device_calls
from edgekv.amounts import MIB
from edgekv.vocab import DeviceKind

_RESET = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class Peak:
    """Since it was made, where the system can count anew (Linux); elsewhere since the process began. All modes together: their contexts lie
    side by side."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            _RESET.write_text("5")
        self.vram_mib: float | None = None
        """The most that `look` saw in use on the first GPU; None without one."""

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
