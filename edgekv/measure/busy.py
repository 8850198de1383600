"""The load of other programs during a measurement."""

import os
import time

import psutil

from edgekv.common.machine import n_cores

_LEAST, _LEAST_SHARE = 0.5, 0.05
"""A machine counts as quiet while others use at most this many cores, or this share of this process's."""

_NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")  # a guest's time is a user's too


class Others:
    """Counts from its creation on."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.perf_counter(), _busy(), _own()

    def cores(self) -> float:
        """Cores that other programs kept busy since then, on average."""
        elapsed = time.perf_counter() - self._began
        return max(0.0, (_busy() - self._busy) - (_own() - self._own)) / max(elapsed, 1e-9)

    def busy(self) -> float:
        """The same, but 0.0 on a quiet machine."""
        cores = self.cores()
        return cores if cores > max(_LEAST, _LEAST_SHARE * n_cores()) else 0.0


def _busy() -> float:
    """Seconds of computing on all cores since the machine started."""
    times = psutil.cpu_times()
    return sum(getattr(times, name) for name in times._fields if name not in _NOT_BUSY)


def _own() -> float:
    """Seconds of computing of this process, and of those that it started and that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system
