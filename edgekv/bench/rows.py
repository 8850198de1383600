"""Reads files of results: the output of `-o json` and `-o jsonl`, of EdgeKV's commands and of llama-bench."""

import json
from pathlib import Path
from typing import Any

from edgekv.common.errors import ConfigError

Row = dict[str, Any]


def read_document(path: Path) -> Any:
    """The content of a JSON file, or the list of documents of a file with one in each line. Raises ConfigError if it cannot be read or is
    neither."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name a file that -o json or -o jsonl wrote") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not JSON (it is not text); name a file that -o json or -o jsonl wrote") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) > 1 and lines[0].lstrip().startswith("{") and lines[0].rstrip().endswith("}"):
            return _lines(path, lines)
        raise ConfigError(f"{path} is not JSON ({error}); write it again with -o json") from None


def _lines(path: Path, lines: list[str]) -> list[Any]:
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"line {number} of {path} is not JSON ({error}); write it again with -o jsonl") from None
    return found


def read_rows(path: Path) -> list[Row]:
    """The objects of a file's array or lines. Raises ConfigError as `read_document`, and if there is no object."""
    document = read_document(path)
    rows = [row for row in (document if isinstance(document, list) else [document]) if isinstance(row, dict)]
    if not rows:
        raise ConfigError(f"{path} has no rows; name a file that -o json or -o jsonl wrote")
    return rows
