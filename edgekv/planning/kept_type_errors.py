"""What types of K and V cost models, measured, kept by model and kernels."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import platformdirs

import edgekv
from edgekv.common import json_file
from edgekv.config import TypeErrors

log = logging.getLogger("edgekv")


class KeptTypeErrors:
    """The file of measured divergences. An unreadable or unwritable file counts as empty: they are then measured each time."""

    def __init__(self, path: Path | None = None):
        self.path = path or Path(platformdirs.user_cache_dir("edgekv")) / "type-errors.json"

    def find(self, key: str) -> TypeErrors | None:
        """None if nothing was measured, or the file does not hold valid measurements."""
        return _made(json_file.read(self.path).get(key))

    def keep(self, key: str, errors: TypeErrors) -> None:
        kept = {name: entry for name, entry in json_file.read(self.path).items() if _made(entry) is not None}
        kept[key] = {"noise": errors.noise, "whole": dict(errors.whole), "k": errors.k, "v": errors.v}
        try:
            json_file.replace(self.path, kept, indent=None)
        except OSError as error:
            log.warning("what types cost cannot be kept in %s (%s): it is measured each time", self.path, error.strerror)


def key_of(model: bytes, kernels: str, text: str) -> str:
    """The key of a measurement. model: the digest of its files; kernels: the instruction set of attention; text: the text that was read."""
    return f"{model.hex()}; {kernels}; text {text}; EdgeKV {edgekv.__version__}"


def _made(stored: Any) -> TypeErrors | None:
    try:
        return TypeErrors(float(stored["noise"]), {str(name): float(one) for name, one in stored["whole"].items()},
                          tuple(map(float, stored["k"])), tuple(map(float, stored["v"])))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
