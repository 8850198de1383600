"""This machine (the card, its driver, the toolkit, the processor) and the state of the sources that runs on it."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SOURCES = ("native", "patches", "edgekv", "cli", "models", "pyproject.toml")
"""Folders and files that a build is made from."""


@dataclass(frozen=True)
class Card:
    """One NVIDIA GPU; `arch` is 90 for compute capability 9.0."""

    name: str
    driver: str
    arch: int
    memory_mib: int


def cards() -> list[Card]:
    """The GPUs that nvidia-smi names; none without a driver."""
    text = output("nvidia-smi", "--query-gpu=name,driver_version,compute_cap,memory.total", "--format=csv,noheader,nounits")
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 4 and re.fullmatch(r"\d+\.\d+", fields[2]) and fields[3].isdigit():
            found.append(Card(fields[0], fields[1], int(fields[2].replace(".", "")), int(fields[3])))
    return found


def output(*command: str, seconds: float = 30) -> str:
    """Standard output of a command; empty where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def facts() -> dict[str, Any]:
    """All facts that explain a result later."""
    found = cards()
    return {
        "cards": [asdict(card) for card in found],
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "locked_memory_kib": _locked_memory(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "nvcc": (re.findall(r"release [\d.]+, V[\d.]+", output("nvcc", "--version")) or [None])[0],
        "compute_sanitizer": tool("compute-sanitizer"),
    }


def tool(name: str) -> str | None:
    """Path of a program of the toolkit: on PATH, or beside nvcc's usual places."""
    places = [str(path) for path in sorted(Path("/usr/local").glob("cuda*/bin"))]
    extra = [str(path) for path in sorted(Path("/usr/local").glob("cuda*/compute-sanitizer"))]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join([*places, *extra]))


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    return (re.findall(r"model name\s*: (.*)", text) or [platform.machine()])[0]


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1)
    except (ValueError, OSError):
        return None


def _locked_memory() -> int | str:
    import resource

    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else soft // 1024


# ---- the sources ---------------------------------------------------------------------------------------------------------------


def source_files(root: Path, names: Iterable[str] = SOURCES) -> list[Path]:
    """Files below those names, without what building leaves behind; sorted."""
    found = []
    for name in names:
        path = root / name
        found += [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sorted(file for file in found if "__pycache__" not in file.parts and file.suffix not in (".so", ".pyc"))


def source_hash(root: Path, names: Iterable[str] = SOURCES) -> str:
    """Twelve hex digits over names and bytes: the same in a copy without its git history."""
    digest = hashlib.sha256()
    for file in source_files(root, names):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def commit(root: Path) -> str | None:
    """The commit of the checkout, with "+" where the sources differ from it; None where there is no git history."""
    name = output("git", "-C", str(root), "rev-parse", "--short=9", "HEAD")
    if not name:
        return None
    return name + ("+" if output("git", "-C", str(root), "status", "--porcelain", "--", *SOURCES) else "")
