"""The state of the work: a folder outside the checkout, so that a warm machine goes on where the last command stopped."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OK, FAILED, UNFINISHED, SKIPPED = "ok", "failed", "unfinished", "skipped"


class State:
    """A folder with a journal of steps, the measured rows, and the rates of reads from home. All are files of one JSON object a line,
    written through at once: a process killed in the middle of a line loses that line only."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.journal = folder / "journal.jsonl"
        self.rows_file = folder / "rows.jsonl"
        self.reads_file = folder / "reads.jsonl"

    def path(self, *parts: str) -> Path:
        """A path in the folder; its parent exists."""
        path = self.folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def record(self, step: str, key: str, status: str, seconds: float, note: str = "", **more: Any) -> None:
        append(self.journal, {"step": step, "key": key, "status": status, "seconds": round(seconds, 1), "note": note, **more})

    def entries(self) -> dict[str, dict[str, Any]]:
        """The last entry of each step."""
        return {entry["step"]: entry for entry in lines(self.journal)}

    def done(self, step: str, key: str) -> bool:
        """Whether the step ended well, from the same inputs as now."""
        entry = self.entries().get(step)
        return entry is not None and entry["status"] == OK and entry["key"] == key

    def rows(self) -> list[dict[str, Any]]:
        """The measured rows. Of two measurements the later one counts."""
        return list({identity(row): row for row in lines(self.rows_file)}.values())

    def reads(self) -> list[dict[str, Any]]:
        """The rows of kernels.reads(). Of two measurements the later one counts."""
        return list({(row["what"], row["way"], row["asked_mib"]): row for row in lines(self.reads_file)}.values())


def identity(row: dict[str, Any]) -> tuple:
    """The fields that make two rows the same measurement."""
    return tuple(row.get(name) for name in ("model", "column", "budget_bytes", "link", "depth", "device"))


def append(path: Path, entry: dict[str, Any]) -> None:
    text = json.dumps(entry) + "\n"
    if path.exists() and not path.read_bytes().endswith(b"\n"):  # what a kill left of the line before
        text = "\n" + text
    with path.open("a") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a file; none where it is not there."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # cut off by a kill
            continue
