"""What a report is made from: the JSON rows and traces in a folder."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgekv.errors import ConfigError
from edgekv.lab.trace import Trace

Row = dict[str, Any]

CACHE_FILE = "report-sim.json"
"""Simulations that a report did itself."""

WANTED = ("ladder.json (edgekv bench ladder --save), rows of `edgekv bench kv -o json`, `edgekv sim -o json` or "
          "`edgekv quality -o json` as *.json, or traces as *.npz")

_SIM_KEYS = {"policy", "budget", "observe", "hit_rate_mass"}


@dataclass
class Folder:
    path: Path
    times: list[Row] = field(default_factory=list)
    """Rows of `edgekv bench kv`."""
    prompts: list[Row] = field(default_factory=list)
    """Rows of `edgekv bench kv --prefill`."""
    ladder: list[Row] = field(default_factory=list)
    sims: list[Row] = field(default_factory=list)
    quality: list[Row] = field(default_factory=list)
    traces: dict[str, Path] = field(default_factory=dict)
    """By name of the text, or of the file where two have the same text."""
    ignored: list[str] = field(default_factory=list)
    """Names of files that hold nothing a report knows."""

    @property
    def rows(self) -> list[Row]:
        return [*self.times, *self.prompts, *self.ladder, *self.sims, *self.quality]


def read(path: Path) -> Folder:
    """Raises ConfigError where there is no such folder, nothing in it that a report shows, or a file that is broken."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder; name one that holds {WANTED}")
    folder = Folder(path)
    try:
        for file in sorted(path.glob("*.json")):
            if file.name != CACHE_FILE:
                _sort_in(folder, file, _json(file))
        for file in sorted(path.glob("*.npz")):
            with Trace.open(file) as trace:
                text = trace.header.text
            folder.traces[file.name if text in folder.traces else text] = file
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if not folder.rows and not folder.traces:
        raise ConfigError(f"there is nothing to report on in {path}; it should hold {WANTED}")
    return folder


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON ({error}); write it anew, or take it out of the folder") from None


def _sort_in(folder: Folder, file: Path, content: Any) -> None:
    rows = content if isinstance(content, list) else [content]
    known = 0
    for row in rows:
        if not isinstance(row, dict):
            continue
        kind = row.get("kind")
        target = folder.times if kind == "kv" else folder.prompts if kind in ("prefill", "prompt") else folder.ladder if kind == "ladder" else \
            folder.quality if kind in ("text", "task", "grid") else folder.sims if _SIM_KEYS <= set(row) else None
        if target is not None:
            target.append(row)
            known += 1
    if known < len(rows) or not rows:
        folder.ignored.append(file.name if not known else f"{len(rows) - known} of the rows in {file.name}")


def identity(trace: Path) -> str:
    """A name for what is in a trace file, wherever it lies: from the checksums of its members."""
    with zipfile.ZipFile(trace) as members:
        sums = sorted((member.filename, member.CRC) for member in members.infolist())
    return hashlib.sha256(json.dumps(sums).encode()).hexdigest()[:16]


class Cache:
    """Results by key, in `CACHE_FILE`; what cannot be read in it is computed anew, and without a place to write nothing is
    kept."""

    def __init__(self, folder: Path):
        self._path = folder / CACHE_FILE
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = {}
        self._found: dict[str, Any] = found if isinstance(found, dict) else {}
        self._changed = False

    def get(self, key: str) -> Any:
        return self._found.get(key)

    def put(self, key: str, value: Any) -> None:
        self._found[key] = value
        self._changed = True

    def write(self) -> None:
        if self._changed:
            try:
                self._path.write_text(json.dumps(self._found), encoding="utf-8")
            except OSError:  # a folder that only can be read: the report is what was asked for
                return
            self._changed = False
