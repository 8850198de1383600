"""The inputs of a report: the JSON rows and traces in a folder."""

import hashlib
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from edgekv.bench.rows import read_document
from edgekv.common.errors import ConfigError
from edgekv.lab.traces.trace import Trace

Row = dict[str, Any]

CACHE_FILE = "report-sim.json"
"""The file of a report's own simulations."""

WANTED = ("rows of `edgekv bench -o json`, `edgekv bench serve -o json`, `edgekv lab quality -o json` or `edgekv lab sim -o json` "
          "as *.json or *.jsonl, the plan of `edgekv plan --json`, ladder.json (edgekv lab ladder --save), or traces as *.npz")

_SIM_KEYS = {"policy", "budget", "observe", "hit_rate_mass"}
_SERVE_KEYS = {"server", "part", "clients"}
_PLAN_KEYS = {"parts", "limits", "speeds", "model"}


@dataclass
class Folder:
    path: Path
    speeds: list[Row] = field(default_factory=list)
    """Rows of `edgekv bench`."""
    ladder: list[Row] = field(default_factory=list)
    sims: list[Row] = field(default_factory=list)
    quality: list[Row] = field(default_factory=list)
    serves: list[Row] = field(default_factory=list)
    """Rows of `edgekv bench serve`."""
    plans: list[Row] = field(default_factory=list)
    """Documents of `edgekv plan --json`."""
    traces: dict[str, Path] = field(default_factory=dict)
    """Traces by name of the text, or of the file if two have the same text."""
    ignored: list[str] = field(default_factory=list)
    """Names of files that a report cannot show."""

    @property
    def rows(self) -> list[Row]:
        return [*self.speeds, *self.ladder, *self.sims, *self.quality, *self.serves]

    def add(self, document: Row) -> None:
        """Add a document. Raises ConfigError for one that a report does not show."""
        target = _place(self, document)
        if target is None:
            raise ConfigError("a report cannot show it")
        target.append(_known(document))

    @property
    def empty(self) -> bool:
        return not (self.rows or self.plans or self.traces)


def read(path: Path) -> Folder:
    """Read a folder. Raises ConfigError if there is none, or if a file is broken."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder; name one that holds {WANTED}")
    folder = Folder(path)
    try:
        for file in sorted([*path.glob("*.json"), *path.glob("*.jsonl")]):
            if file.name != CACHE_FILE:
                _sort_in(folder, file, read_document(file))
        for file in sorted(path.glob("*.npz")):
            with Trace.open(file) as trace:
                text = trace.header.text
            folder.traces[file.name if text in folder.traces else text] = file
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    return folder


def _sort_in(folder: Folder, file: Path, content: Any) -> None:
    rows = content if isinstance(content, list) else [content]
    known = 0
    for row in rows:
        target = _place(folder, row) if isinstance(row, dict) else None
        if target is not None:
            target.append(_known(row))
            known += 1
    if known < len(rows) or not rows:
        folder.ignored.append(file.name if not known else f"{len(rows) - known} of the rows in {file.name}")


def _place(folder: Folder, row: Row) -> list[Row] | None:
    """The list that a row belongs to; None if a report does not show it."""
    kinds = {"bench": folder.speeds, "ladder": folder.ladder,
             "text": folder.quality, "task": folder.quality, "grid": folder.quality}
    if (kind := row.get("kind")) in kinds:
        return kinds[kind]
    told = ((_SIM_KEYS, folder.sims), (_SERVE_KEYS, folder.serves), (_PLAN_KEYS, folder.plans))
    return next((target for keys, target in told if keys <= set(row)), None)


def _known(row: Row) -> Row:
    """The row with the fields common to all commands under their most frequent names, and only the file's name as model."""
    environment = row.get("environment")
    if isinstance(environment, dict):
        names = {"family": "cpu", "cpu": "cpu_name", "edgekv": "version"}
        row = {**{names.get(str(key), str(key)): value for key, value in environment.items()}, **row}
    model = row.get("model_filename") or row.get("model")
    return {**row, "model": PurePath(str(model)).name} if model else row


def identity(trace: Path) -> str:
    """A name for a trace file's content, made of its members' checksums."""
    with zipfile.ZipFile(trace) as members:
        sums = sorted((member.filename, member.CRC) for member in members.infolist())
    return hashlib.sha256(json.dumps(sums).encode()).hexdigest()[:16]


class Cache:
    """Results by key, in `CACHE_FILE`. Unreadable results are computed again; in a folder that cannot be written, none are
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
            except OSError:  # the folder is read-only, but the report can still be made
                return
            self._changed = False
