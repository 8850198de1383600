"""A section of a report: a title, a sentence about its content and measurement, pictures and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekv import __version__
from edgekv.common import units
from edgekv.common.enums import FULL, STOCK
from edgekv.lab.report.charts import Panel, line_chart
from edgekv.lab.report.drawing import BLUE, GREEN, ORANGE, PURPLE, RED
from edgekv.lab.report.study import EMA, POOLED, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

COLOURS = {POOLED: BLUE, EMA: RED, "streaming": GREEN, "lru": ORANGE, "h2o": PURPLE}
"""Colours that are the same in every picture; other policies take free ones."""

MODE_NAMES = {STOCK: "stock llama.cpp", FULL: "exact"}
MODE_COLOURS = {STOCK: RED, FULL: GREEN, "sparse": BLUE}
"""Colours of KV modes. Stock is the faster of its kernels."""

DEPTH = "tokens in the context"
LIMIT = "limit: weights alone"

NO_TRACE = "a trace *.npz (edgekv lab trace record)"


@dataclass(frozen=True)
class Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    words: bool = False
    """Whether every column holds words."""

    def left(self, column: int) -> bool:
        """Whether a column holds words, which begin at its left edge."""
        return self.words or any(row[column][:1].isalpha() or row[column][:2] == "+ " for row in self.rows)

    def head(self, column: int) -> str:
        """A column's title, with its unit kept on the line of the last word."""
        words = self.columns[column].split(" ")
        return " ".join(words[:-2] + ["\u00a0".join(words[-2:])]) if len(words) > 1 and len(words[-1]) < 4 else self.columns[column].replace("x ", "x\u00a0")

    @classmethod
    def without_empty(cls, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", words: bool = False) -> Table:
        """A table without columns that have no known value."""
        kept = [i for i in range(len(columns)) if any(row[i] != UNKNOWN for row in rows)]
        return cls([columns[i] for i in kept], [[row[i] for i in kept] for row in rows], caption, words)


@dataclass(frozen=True)
class Picture:
    name: str
    """Name of its file without ending."""
    title: str
    """Screen readers read it."""
    figure: Figure
    caption: str


@dataclass
class Section:
    key: str
    title: str
    text: str = ""
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    missing: str = ""
    """The part that the folder lacks; empty: it lacks none."""

    def picture(self, figure: Figure, caption: str) -> None:
        number = len(self.pictures) + 1
        self.pictures.append(Picture(f"{self.key}-{number}" if number > 1 else self.key, self.title, figure, caption))

    def curves(self, panels: Sequence[Panel], x_label: str, caption: str, **settings: Any) -> None:
        """Add a picture of lines; `settings` are those of `line_chart`."""
        self.picture(line_chart(panels, x_label, **settings), caption)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> None:
        self.tables.append(Table(columns, list(rows), caption))


UNKNOWN = "–"


def percent(share: Any, digits: int = 1) -> str:
    """A share in percent without its sign; a dash if unknown."""
    return _shown(share, lambda value: units.percent(value, digits))


def points(share: Any) -> str:
    return _shown(share, lambda value: units.signed_percent(value, 1))


def number(value: Any, form: str) -> str:
    return _shown(value, lambda known: format(known, form))


def divergence(kld: Any) -> str:
    """ "6.0e-03"."""
    return "0" if kld == 0 else number(kld, ".1e")


def _shown(value: Any, show: Any) -> str:
    return show(value) if isinstance(value, (int, float)) and np.isfinite(value) else UNKNOWN


def where(rows: Iterable[Row]) -> str:
    """Model, texts, depth and steps of rows, and the version, machine and date of their measurement."""
    rows = list(rows)

    def values(key: str) -> str:
        return ", ".join(dict.fromkeys(str(row[key]) for row in rows if row.get(key) is not None and row[key] != "mean"))

    parts = (("model", "{}"), ("text", "{}"), ("depth", "{} tokens deep"), ("n_steps", "{} decode steps"),
             ("version", "EdgeKV {}"), ("cpu", "{}"), ("date", "{}"))
    return "; ".join(form.format(found) for key, form in parts if (found := values(key)))


_RUN_KEYS = ("cpu", "date", "model", "version", "isa")


def runs_of(rows: Iterable[Row], figure: str) -> list[list[Row]]:
    """The rows that have `figure`, by run: figures of different machines or days cannot be compared."""
    runs: dict[tuple, list[Row]] = {}
    for row in rows:
        if row.get(figure) is not None:
            runs.setdefault(tuple(row.get(key) for key in _RUN_KEYS), []).append(row)
    return list(runs.values())


def of_threads(n: Any) -> str:
    return "1 thread" if n == 1 else f"{n} threads"


def facts(study: Study) -> Row:
    """The facts about a simulation that `where` shows."""
    return {"model": study.header.model, "text": study.text, "depth": study.header.depth, "n_steps": study.n_steps,
            "version": __version__}


def of_trace(study: Study) -> str:
    return where([facts(study)])
