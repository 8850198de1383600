"""What other programs do on this machine while something is measured."""

from __future__ import annotations

import time

import psutil

from edgekv.machine import n_cores

_LEAST, _LEAST_SHARE = 0.5, 0.05
"""Cores, and of those that this process may use, which others may keep busy on a machine that counts as quiet."""

_NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")  # a guest's time is a user's too


class Others:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.perf_counter(), _busy(), _own()

    def cores(self) -> float:
        """Cores that other programs kept busy since then, on average."""
        elapsed = time.perf_counter() - self._began
        return max(0.0, (_busy() - self._busy) - (_own() - self._own)) / max(elapsed, 1e-9)

    def busy(self) -> float:
        """The same where it is more than a quiet machine's; 0.0: it is quiet."""
        cores = self.cores()
        return cores if cores > max(_LEAST, _LEAST_SHARE * n_cores()) else 0.0


def _busy() -> float:
    """Seconds that all cores computed since the machine was started."""
    times = psutil.cpu_times()
    return sum(getattr(times, name) for name in times._fields if name not in _NOT_BUSY)


def _own() -> float:
    """Of them this process's."""
    return time.process_time()
