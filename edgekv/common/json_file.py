"""Small JSON files of this machine that several processes read and replace."""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

T = TypeVar("T")

Rate = Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
"""A measured number: of amounts a second, or of seconds."""


def read(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no file, or no object in it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def replace(path: Path, content: dict[str, Any] | list[str], indent: int | None = 1) -> None:
    """Write an object or a list in one step, because another process may be reading the file. indent None: all in one line. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as file:
        json.dump(content, file, indent=indent)
    os.replace(file.name, path)


def made(kind: type[T], stored: Any) -> T | None:
    """The record, or number, that was kept; None for values that no measurement gives: somebody edited the file, or another version wrote it."""
    try:
        return msgspec.convert(stored, kind)
    except msgspec.ValidationError:
        return None
