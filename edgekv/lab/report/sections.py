"""What a part of a report is: a title, a sentence that says what is seen and how it was measured, pictures and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edgekv import __version__, amounts
from edgekv.lab.report.drawing import BLUE, GREEN, ORANGE, PURPLE, RED, svg
from edgekv.lab.report.study import EMA, POOLED, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

COLOURS = {POOLED: BLUE, EMA: RED, "streaming": GREEN, "lru": ORANGE, "h2o": PURPLE}
"""The same in every picture; others take what is free."""

NO_TRACE = "a trace *.npz (edgekv trace record)"


@dataclass(frozen=True)
class Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def left(self, column: int) -> bool:
        """Whether a column holds words: they begin at its left edge."""
        return any(row[column][:1].isalpha() or row[column][:2] == "+ " for row in self.rows)


@dataclass
class Section:
    key: str
    title: str
    text: str = ""
    pictures: list[tuple[str, str]] = field(default_factory=list)
    """(SVG element, caption)"""
    tables: list[Table] = field(default_factory=list)
    missing: str = ""
    """What would have to be in the folder; empty: it is there."""

    def picture(self, figure: Figure, caption: str) -> None:
        self.pictures.append((svg(figure, f"{self.key}{len(self.pictures)}"), caption))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> None:
        self.tables.append(Table(columns, list(rows), caption))


def percent(share: Any, digits: int = 1) -> str:
    """Without its sign; a dash for what is not known."""
    return _shown(share, lambda value: amounts.percent(value, digits))


def points(share: Any) -> str:
    return _shown(share, lambda value: amounts.signed_percent(value, 1))


def number(value: Any, form: str) -> str:
    return _shown(value, lambda known: format(known, form))


def _shown(value: Any, show: Any) -> str:
    return show(value) if isinstance(value, (int, float)) and np.isfinite(value) else "–"


def where(rows: Iterable[Row]) -> str:
    """Model, texts, depth and steps of rows, the version that measured them, and where and when."""
    rows = list(rows)

    def values(key: str) -> str:
        return ", ".join(dict.fromkeys(str(row[key]) for row in rows if row.get(key) is not None and row[key] != "mean"))

    parts = (("model", "{}"), ("text", "{}"), ("depth", "{} tokens deep"), ("n_steps", "{} decode steps"),
             ("version", "EdgeKV {}"), ("cpu", "{}"), ("date", "{}"))
    return "; ".join(form.format(found) for key, form in parts if (found := values(key)))


def facts(study: Study) -> Row:
    """What `where` says of what is simulated on a trace."""
    return {"model": study.header.model, "text": study.text, "depth": study.header.depth, "n_steps": study.n_steps,
            "version": __version__}


def of_trace(study: Study) -> str:
    return where([facts(study)])
