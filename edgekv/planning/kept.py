"""What was measured once on this machine, in files of the user's cache folder."""

import logging
from pathlib import Path
from typing import Any, TypeVar

import platformdirs
from msgspec import to_builtins

import edgekv
from edgekv.common import json_file

T = TypeVar("T")

log = logging.getLogger("edgekv")


class Kept:
    """A JSON file of entries by name. One that cannot be read counts as empty.

    what: names the entries, in the warning where the file cannot be written; otherwise: what happens then."""

    def __init__(self, file: str, what: str, otherwise: str = "they are measured each time", path: Path | None = None):
        self.path = path or Path(platformdirs.user_cache_dir("edgekv")) / file
        self._what, self._otherwise = what, otherwise

    def find(self, name: str, kind: type[T]) -> T | None:
        """None if nothing was kept under this name, or what is there is no valid value of this kind."""
        return json_file.made(kind, json_file.read(self.path).get(name))

    def keep(self, name: str, value: Any, indent: int | None = 1) -> None:
        """value: one that msgspec writes, or with numbers of NumPy."""
        try:
            json_file.replace(self.path, json_file.read(self.path) | {name: to_builtins(value, enc_hook=float)}, indent)
        except OSError as error:
            log.warning("%s cannot be kept in %s (%s): %s", self._what, self.path, error.strerror, self._otherwise)


def key_of(model: bytes, *of: str) -> str:
    """The name of what was measured of a model with this build. model: the digest of its files; of: all else that it depends on."""
    return "; ".join((model.hex(), *of, f"EdgeKV {edgekv.__version__}"))
