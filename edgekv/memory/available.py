"""Free host memory: the machine's, or what the control groups of this process leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

MEMBERSHIP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Bytes that can be had before anything is swapped or killed. What the page cache holds of files counts as free, as in the kernel's own
    MemAvailable: weights that are mapped and were read before are there, and are not counted twice."""
    return min([psutil.virtual_memory().available, *_left_in_groups()])


@dataclass(frozen=True)
class _Files:
    """The files of one version of control groups."""

    root: Path
    limits: tuple[str, ...]
    used: str
    cached: tuple[str, ...]
    """Fields of memory.stat for pages of files, which go when others need the memory."""


def _versions() -> tuple[_Files, _Files]:
    """Of version 1, and of version 2, where it is alone."""
    return (_Files(GROUPS / "memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
            _Files(GROUPS, ("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file")))


def _left_in_groups() -> Iterator[int]:
    """Of the group of this process, and of each group that it is in: the narrowest counts. In a container the path may be that of another
    view, and only the root is there."""
    first, second = _versions()
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
    """Nothing for a group that is missing or has no limit."""
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
