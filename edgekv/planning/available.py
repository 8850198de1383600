"""Free host memory: the machine's, or less if a control group of this process has a limit."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

MEMORY = Path("/proc/meminfo")
MEMBERSHIP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Bytes that can be used before the kernel swaps or kills. The page cache counts as free, as in the kernel's MemAvailable: mapped weights
    that were read before lie there, and are not counted twice."""
    return min([_machines(), *_left_in_groups()])


def _machines() -> int:
    for line in _lines(MEMORY):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    import psutil  # elsewhere than on Linux: it takes as long to import as a header to read

    return psutil.virtual_memory().available


class _Files(Struct, frozen=True):
    """The files of one version of control groups."""

    root: Path
    limits: tuple[str, ...]
    used: str
    cached: tuple[str, ...]
    """Fields of memory.stat for pages of files, which the kernel drops when others need memory."""


def _left_in_groups() -> Iterator[int]:
    """Free bytes of this process's group and of each group above it. In a container the path may belong to another view, where only the root
    exists."""
    first = _Files(GROUPS / "memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))
    second = _Files(GROUPS, ("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file"))
    for line in _lines(MEMBERSHIP):
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if "memory" in controllers.split(","):
            files = first
        elif not controllers:
            files = second
        else:
            continue
        group = files.root / path.strip("/")
        for folder in (group, *group.parents):
            yield from _left(files, folder)
            if folder == files.root:
                break


def _left(files: _Files, folder: Path) -> Iterator[int]:
    """Free bytes by each limit of a group; none if the group is missing or unlimited."""
    try:
        used = int((folder / files.used).read_text())
    except (OSError, ValueError):
        return
    stat = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat") if " " in line)
    cached = sum(int(stat[name]) for name in files.cached if stat.get(name, "").isdigit())
    for name in files.limits:
        limit = "".join(_lines(folder / name))
        if limit.isdigit():  # or "max"
            yield max(0, int(limit) - max(0, used - cached))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
