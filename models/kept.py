"""What was read of a model file, or asked about it, in the user's cache folder: as long as the file and our libraries stay what they are."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import platformdirs

from edgekv.common import json_file

MOST_FILES = 200
"""Of each ending; the oldest go."""

SETTLED_NS = 2_000_000_000
"""A file that changed less long ago may change again without a sign: clocks of file systems tick slowly."""


def identity(parts: Iterable[Path]) -> list[str | int]:
    """The files of a model as they are now. Raises OSError."""
    from edgekv._native.device_calls import sources

    states = [(str(part.absolute()), part.stat()) for part in parts]
    return [sources(), *(one for name, state in states for one in (name, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))]


def settled(path: Path) -> bool:
    return time.time_ns() - path.stat().st_ctime_ns > SETTLED_NS


class Kept:
    """Facts about the model in `path`, in a file with this ending; none if they are of another one than `of`, an `identity`."""

    def __init__(self, path: Path, of: list[str | int], ending: str):
        self.of = of
        name = hashlib.blake2b(str(path.absolute()).encode(errors="surrogateescape"), digest_size=12).hexdigest()
        self._file = Path(platformdirs.user_cache_dir("edgekv")) / "models" / f"{name}.{ending}"
        read = json_file.read(self._file)
        self.facts: dict[str, Any] = read.get("facts", {}) if read.get("of") == of else {}

    def keep(self) -> None:
        """Write the facts, if that is possible: otherwise they are found out again each time."""
        with contextlib.suppress(OSError):
            json_file.replace(self._file, {"of": self.of, "facts": self.facts}, indent=None)
            ending = self._file.name.partition(".")[2]
            for old in sorted(self._file.parent.glob(f"*.{ending}"), key=lambda path: path.stat().st_mtime_ns)[:-MOST_FILES]:
                old.unlink()
