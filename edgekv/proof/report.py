"""What the parts told: kept in a file that is written again after each, and summed up in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from msgspec import to_builtins

import edgekv
from edgekv.common import json_file, machine
from edgekv.common.errors import ConfigError
from edgekv.proof.steps import PROVES, HeadShape, Outcome, Part, Row

MOST_BYTES = 200_000
_MOST_SAID, _MOST_LOG = 300, 2000
"""Characters that are kept of a row, and of what a part that failed wrote."""


class Report:
    """A file that is complete at any time."""

    def __init__(self, path: Path, device: dict[str, Any], shape: HeadShape, steps: tuple[str, ...], quick: bool):
        self._path = path
        self._content: dict[str, Any] = {"edgekv": edgekv.__version__, **machine.stamp(), "device": device, "heads": to_builtins(shape), "steps": steps,
                                        "quick": quick, "finished": False, "said": "", "parts": []}
        self._write()

    @property
    def rows(self) -> list[Row]:
        return [row for part in self._content["parts"] for row in part["rows"]]

    def add(self, part: Part, rows: list[Row], seconds: float, log: str) -> None:
        """Keep a part's rows; log: what it wrote, kept where a row fails."""
        kept = [row | {"said": row["said"][:_MOST_SAID]} for row in rows]
        failed = any(Outcome(row["outcome"]).fails for row in rows)
        self._content["parts"].append({"part": part.title, "seconds": round(seconds, 1), "rows": kept, "log": log[-_MOST_LOG:] if failed else ""})
        self._write()

    @property
    def passed(self) -> bool | None:
        """Whether the card is proven; None: nothing was wrong, but not all of it ran."""
        if any(Outcome(row["outcome"]).fails for row in self.rows):
            return False
        right = {row["step"] for row in self.rows if row["outcome"] == Outcome.RIGHT.value}
        return True if right >= set(PROVES) and not self._content["quick"] else None

    def finish(self) -> str:
        """The verdict in one sentence, kept too."""
        failed = list(dict.fromkeys(row["step"] for row in self.rows if Outcome(row["outcome"]).fails))
        name, content = self._content["device"]["name"], self._content
        said = {False: f"WRONG on {name}: {' and '.join(failed)}; stock attention is used there. Please report it with {self._path}",
                None: f"Nothing was wrong on {name} in what ran; a whole `edgekv doctor --gpu` turns EdgeKV's attention on there",
                True: f"EdgeKV's attention is right on {name}, and is used there from now on"}[self.passed]
        content |= {"finished": True, "said": said}
        self._write()
        return said

    def _write(self) -> None:
        while len(json.dumps(self._content, indent=1)) > MOST_BYTES:
            longest = max(self._content["parts"], key=lambda part: len(json.dumps(part)))
            longest["rows"], longest["log"] = longest["rows"][: len(longest["rows"]) // 2], ""
        try:
            json_file.replace(self._path, self._content)
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written ({error.strerror}); name another file with -o") from error


def failures(path: Path) -> tuple[str, HeadShape, list[Row]]:
    """Of a report: the card's name, the heads, and the rows that failed. Raises ConfigError for another file, or if nothing failed."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows: list[Row] = [row for part in content["parts"] for row in part["rows"] if Outcome(row["outcome"]).fails and isinstance(row["replay"], dict)]
        found = content["device"]["name"], HeadShape(**content["heads"]), rows
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give the file that `edgekv doctor --gpu -o` named") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no report of `edgekv doctor --gpu`; give the file that its -o named") from error
    if not rows:
        raise ConfigError(f"{path} tells of no case that failed, so there is nothing to replay")
    return found
