"""The inputs of a report: the JSON rows in a folder."""

from collections import defaultdict
from pathlib import Path, PurePath
from typing import Any

from msgspec import Struct, field

from edgekv.bench.rows import read_document
from edgekv.common.errors import ConfigError

Row = dict[str, Any]

WANTED = ("rows of `edgekv bench -o json`, `edgekv bench serve -o json`, `edgekv lab quality -o json` or `edgekv lab sim -o json` "
          "as *.json or *.jsonl, the plan of `edgekv plan --json`, or ladder.json (edgekv lab ladder --save)")

_KINDS = ("bench", "ladder", "text", "task")
_KEYS = {"sim": {"policy", "budget", "observe", "hit_rate_mass"}, "serve": {"server", "part", "clients"}, "plan": {"parts", "limits", "speeds", "model"}}
"""What tells rows that do not name their kind."""


class Folder(Struct):
    rows: defaultdict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    """Rows by kind: bench, ladder; text and task of `edgekv lab quality`; sim, serve and plan."""
    ignored: list[str] = field(default_factory=list)
    """Names of files that a report cannot show."""

    @property
    def all_rows(self) -> list[Row]:
        return [row for rows in self.rows.values() for row in rows]

    def add(self, documents: list[Any], name: str) -> None:
        """Sort in the documents of the file `name`."""
        kinds = [_kind(row) if isinstance(row, dict) else None for row in documents]
        for kind, row in zip(kinds, documents):
            if kind is not None:
                self.rows[kind].append(_known(row))
        if not documents or None in kinds:
            self.ignored.append(name if not any(kinds) else f"{kinds.count(None)} of the rows in {name}")


def read(path: Path) -> Folder:
    """Read a folder. Raises ConfigError if there is none, or if a file is broken."""
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder; name one that holds {WANTED}")
    folder = Folder()
    try:
        for file in sorted([*path.glob("*.json"), *path.glob("*.jsonl")]):
            content = read_document(file)
            folder.add(content if isinstance(content, list) else [content], file.name)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    return folder


def _kind(row: Row) -> str | None:
    """None if a report does not show it."""
    return str(row["kind"]) if row.get("kind") in _KINDS else next((kind for kind, keys in _KEYS.items() if keys <= set(row)), None)


def _known(row: Row) -> Row:
    """The row with the fields common to all commands under their most frequent names, and only the file's name as model."""
    environment = row.get("environment")
    if isinstance(environment, dict):
        names = {"family": "cpu", "cpu": "cpu_name", "edgekv": "version"}
        row = {**{names.get(str(key), str(key)): value for key, value in environment.items()}, **row}
    model = row.get("model_filename") or row.get("model")
    return {**row, "model": PurePath(str(model)).name} if model else row
