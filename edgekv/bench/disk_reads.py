"""What this process reads from disks."""

import mmap
from pathlib import Path

_COUNTS = Path("/proc/self/io")


class DiskReads:
    """Adds up the pages that all threads of this process read from disks between `begin` and `end`: those that were in memory count nothing."""

    def __init__(self) -> None:
        self.n_pages: float | None = 0.0
        """None: the system does not count them."""
        self._before: int | None = None

    def begin(self) -> None:
        self._before = _read_bytes()

    def end(self) -> None:
        now = _read_bytes()
        if self.n_pages is None or self._before is None or now is None:
            self.n_pages = None
        else:
            self.n_pages += (now - self._before) / mmap.PAGESIZE


def _read_bytes() -> int | None:
    try:
        lines = _COUNTS.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
    except (OSError, StopIteration, ValueError):
        return None
