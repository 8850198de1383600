"""The measured sampling errors of models' heads, kept by model, kernels and settings."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import platformdirs

import edgekv
from edgekv.common import json_file
from edgekv.config import HeadErrors, KvOptions

log = logging.getLogger("edgekv")


class KeptHeadErrors:
    """The file of measured errors. An unreadable or unwritable file counts as empty: errors are then measured each time."""

    def __init__(self, path: Path | None = None):
        self.path = path or Path(platformdirs.user_cache_dir("edgekv")) / "head-errors.json"

    def find(self, key: str) -> HeadErrors | None:
        """None if nothing was measured, or the file does not hold valid measurements."""
        return _made(json_file.read(self.path).get(key))

    def keep(self, key: str, errors: HeadErrors) -> None:
        kept = {name: entry for name, entry in json_file.read(self.path).items() if _made(entry) is not None}
        kept[key] = {"resolutions": errors.resolutions, "errors": errors.errors}
        try:
            json_file.replace(self.path, kept, indent=None)
        except OSError as error:
            log.warning("the measured errors of heads cannot be kept in %s (%s): they are measured each time", self.path, error.strerror)


def key_of(model: bytes, kv: KvOptions, kernels: str, text: str) -> str:
    """The key of a measurement. model: the digest of its files; kernels: the place of attention and its instruction set; text: the text that
    was read."""
    cache, chosen = kv.cache, kv.selection
    of = f"{'/'.join(cache.names)} b3 {chosen.sink_tokens}+{chosen.recent_tokens}"
    return f"{model.hex()}; {of}; {kernels}; text {text}; EdgeKV {edgekv.__version__}"


def _made(stored: Any) -> HeadErrors | None:
    try:
        errors = tuple(tuple(tuple(map(float, heads)) for heads in table) for table in stored["errors"])
        made = HeadErrors(tuple(map(float, stored["resolutions"])), errors)
    except (KeyError, TypeError, ValueError):
        return None
    known = all(math.isfinite(one) and one >= 0 for table in errors for heads in table for one in heads)
    return made if known else None
