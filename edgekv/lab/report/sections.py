"""A section of a report: a title, a sentence about its content and measurement, pictures and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
Join = Callable[[Sequence[float]], float]

UNKNOWN = "–"
_MOST = 12
"""Columns of figures in a table: so many fit on a sheet of paper without breaking words."""


class Column(NamedTuple):
    """Of a table; the columns of commands do as well."""

    key: str
    title: str
    show: Callable[[Any], str] = str


class Table(NamedTuple):
    columns: Sequence[tuple[str, bool]]
    """Titles, and whether the column holds words, which begin at its left edge."""
    rows: Sequence[Sequence[str]]
    caption: str


class Picture(NamedTuple):
    name: str
    """Name of its file without ending."""
    figure: Figure
    caption: str


class Section(Struct):
    key: str
    title: str
    text: str = ""
    verdict: str = ""
    """The sentence that the page begins with."""
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    missing: str = ""
    """The part that the folder lacks; empty: it lacks none."""

    def picture(self, figure: Figure, caption: str) -> None:
        number = len(self.pictures) + 1
        self.pictures.append(Picture(f"{self.key}-{number}" if number > 1 else self.key, figure, caption))

    def table(self, rows: Sequence[Row], columns: Iterable[Any], caption: str = "") -> None:
        """Add tables of at most `_MOST` columns of figures, each with the first columns of words. A column without a known value is left out; what
        all rows have in common, but for fractions, stands in the caption."""
        if not rows:
            return
        shown, same = [], []
        for column in columns:
            values = [row.get(column.key) for row in rows]
            cells = [column.show(value) if _is_known(value) else UNKNOWN for value in values]
            known = [value for value in values if _is_known(value)]
            if len(rows) > 1 and len(set(cells)) == 1 and known and not isinstance(known[0], float):
                same.append(f"{column.title} {cells[0]}")
            elif known:
                shown.append(((column.title, isinstance(known[0], str)), cells))
        lead = list(takewhile(lambda column: column[0][1], shown))
        rest = shown[len(lead) :]
        about = "; ".join(filter(None, (*same, caption)))
        for start in range(0, len(rest) or 1, _MOST):
            part = [*lead, *rest[start : start + _MOST]]
            self.tables.append(Table([head for head, _ in part], list(zip(*(cells for _, cells in part))), about))


def _is_known(value: Any) -> bool:
    return value is not None and value != "" and (not isinstance(value, float) or isfinite(value))


def where(rows: Iterable[Row]) -> str:
    """Model, texts, depth and steps of rows, and the version, machine and date of their measurement."""
    rows = list(rows)

    def values(key: str) -> str:
        return ", ".join(dict.fromkeys(str(row[key]) for row in rows if row.get(key) is not None and row[key] != "mean"))

    parts = (("model", "{}"), ("text", "{}"), ("depth", "{} tokens deep"), ("n_steps", "{} decode steps"),
             ("version", "EdgeKV {}"), ("cpu", "{}"), ("date", "{}"))
    return "; ".join(form.format(found) for key, form in parts if (found := values(key)))


def runs_of(rows: Iterable[Row], figure: str) -> list[list[Row]]:
    """The rows that have `figure`, by run, the newest first: figures of different machines or days cannot be compared."""
    runs: dict[tuple, list[Row]] = {}
    for row in rows:
        if row.get(figure) is not None:
            runs.setdefault(tuple(row.get(key) for key in ("cpu", "date", "model", "version", "isa")), []).append(row)
    return sorted(runs.values(), key=lambda run: str(run[0].get("date")), reverse=True)


def lines_of(rows: Iterable[Row], name: str, x: str, y: str, join: Join = fmean) -> dict[str, dict[float, float]]:
    """For each value of the field `name` the figure `y` by `x`; several rows in one place are joined."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        if row.get(x) is not None and row.get(y) is not None:
            found.setdefault(str(row[name]), {}).setdefault(row[x], []).append(row[y])
    return {of: {place: join(values) for place, values in sorted(by.items())} for of, by in found.items()}
