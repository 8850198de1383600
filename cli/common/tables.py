"""Prints rows as a table, JSON, CSV or Markdown, for all commands that answer with rows. In a terminal a table is as wide as that: columns of the
lowest rank leave, and texts are wrapped at words."""

import csv
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import click
import msgspec

from edgekv.cli.common.shared_options import option

Row = Mapping[str, Any]

NAME = 9
"""The rank of columns that tell rows apart: they never leave, and nothing is cut off."""

_GAP = 2


class Column(msgspec.Struct, frozen=True):
    """A column of a table. show(value): its text; None and NaN are dashes. rank: in a narrow terminal columns of the lowest rank leave first, of
    equals the last one. least: the least width of a text that may be wrapped at words; None: it is not wrapped. score(row): the cell
    with the highest of a group of rows is marked; None: the row has none.
    """

    key: str
    title: str
    show: Callable[[Any], str] = str
    right: bool = True
    rank: int = 5
    least: int | None = None
    score: Callable[[Row], float | None] | None = None

    def cell(self, row: Row) -> str:
        value = row.get(self.key)
        return "-" if value is None or isinstance(value, float) and math.isnan(value) else self.show(value)


def output_option(*formats: str) -> Callable[[Callable], Callable]:
    """The option `-o/--output`; "table" is the first choice and the default."""
    choices = ("table", *formats)
    return option("-o", "--output", type=click.Choice(choices), default="table", show_default=True, help="How to print.")


def print_measured(rows: Sequence[Row], columns: list[Column], output: str, groups: Sequence[str] = ()) -> None:
    """`print_rows`, with a line above a table that says where and when the rows were measured; JSON and CSV say it in each row."""
    if output in ("table", "md"):
        click.echo(measured_on(rows) + "\n")
    print_rows(rows, columns, output, groups)


def measured_on(rows: Iterable[Row]) -> str:
    """Processor, date, model and version of the rows, each value once."""
    rows = list(rows)
    parts = (("cpu", "{}"), ("cores", "{} cores"), ("date", "{}"), ("model", "{}"), ("version", "EdgeKV {}"), ("isa", "{} kernels"))
    return "; ".join(form.format(", ".join(found)) for key, form in parts
                     if (found := dict.fromkeys(str(row[key]) for row in rows if row.get(key) is not None)))


def print_rows(rows: Sequence[Row], columns: list[Column], output: str, groups: Sequence[str] = ()) -> None:
    """Print `rows` on standard output: the `columns` as a table or Markdown, every key as JSON or CSV. groups: keys whose values make rows a
    group, which a terminal parts by a blank line."""
    if output == "json":
        print_json(rows)
    elif output == "csv":
        keys = dict.fromkeys(key for row in rows for key in row) or [c.key for c in columns]
        writer = csv.DictWriter(sys.stdout, fieldnames=list(keys), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif output == "md":
        _print_markdown(rows, columns)
    elif sys.stdout.isatty():
        _print_rich(rows, columns, groups)
    else:
        _print_plain(rows, columns)


def print_json(value: Any) -> None:
    """With null for NaN and infinity, which JSON does not have."""
    click.echo(msgspec.json.format(msgspec.json.encode(value, enc_hook=float), indent=2).decode())


def span(values: Iterable[int]) -> str:
    """ "4-7", or "4" where all values are equal."""
    numbers = list(values)
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low}-{high}"


def layer_runs(layers: Iterable[Row]) -> Iterator[tuple[str, Row]]:
    """The numbers and the first layer of each run of layers that differ only in their numbers."""
    for _, group in groupby(layers, key=lambda layer: {key: value for key, value in layer.items() if key not in ("il", "index")}):
        run = list(group)
        yield span(layer["il"] for layer in run), run[0]


def _print_plain(rows: Iterable[Row], columns: list[Column]) -> None:
    lines = [[c.title for c in columns], *([c.cell(row) for c in columns] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (cell.rjust(w) if c.right else cell.ljust(w) for cell, w, c in zip(line, widths, columns))
        click.echo("  ".join(cells).rstrip())


def _print_markdown(rows: Iterable[Row], columns: list[Column]) -> None:
    click.echo("| " + " | ".join(c.title for c in columns) + " |")
    click.echo("|" + "|".join("---:" if c.right else "---" for c in columns) + "|")
    for row in rows:
        click.echo("| " + " | ".join(c.cell(row).replace("|", "\\|") for c in columns) + " |")


def _print_rich(rows: Sequence[Row], columns: list[Column], groups: Sequence[str]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    columns = [c for c in columns if c.title or any(row.get(c.key) is not None for row in rows)]
    shown = fitting(rows, columns, console.width)
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for c, width in shown.items():
        table.add_column(c.title, justify="right" if c.right else "left", width=width, overflow="fold")
    if not rows:
        table.add_row()
    for number, (_, group) in enumerate(groupby(rows, key=lambda row: [row.get(key) for key in groups])):
        if number:
            table.add_row()
        members = list(group)
        best = {c: _best(c, members) for c in shown}
        for row in members:
            table.add_row(*(Text(c.cell(row), "bold green" if row is best[c] else "") for c in shown))
    console.print(table)
    if n_left := len(columns) - len(shown):
        console.print(f"{n_left} more column{'s' * (n_left > 1)}: {_elsewhere()}", style="dim", highlight=False)


def fitting(rows: Iterable[Row], columns: Sequence[Column], width: int) -> dict[Column, int]:
    """The columns that a terminal of `width` has room for, each with its width."""
    rows = list(rows)
    natural = {c: max([len(c.title), *(len(c.cell(row)) for row in rows)]) for c in columns}
    least = {c: natural[c] if c.least is None else min(natural[c], max(c.least, max(map(len, c.title.split()), default=0))) for c in columns}
    shown = list(columns)

    def spare() -> int:
        return width - sum(least[c] for c in shown) - _GAP * (len(shown) - 1)

    while spare() < 0 and any(c.rank < NAME for c in shown):
        shown.remove(min(reversed(shown), key=lambda c: c.rank))
    room, widths = spare(), dict.fromkeys(shown, 0)
    for c in sorted(shown, key=lambda c: natural[c] - least[c]):  # the shorter ones whole
        widths[c] = least[c] + max(0, min(natural[c] - least[c], room))
        room -= widths[c] - least[c]
    while room < 0:  # names are left, too long ones: they go on in another line
        longest = max(shown, key=widths.__getitem__)
        widths[longest] -= 1
        room += 1
    return widths


def _best(column: Column, rows: Sequence[Row]) -> Row | None:
    """The row of a group that the column marks; None: there is nothing to compare."""
    scores = [(score, -number) for number, row in enumerate(rows) if column.score is not None and (score := column.score(row)) is not None]
    return rows[-max(scores)[1]] if len(scores) > 1 else None


def _elsewhere() -> str:
    """How the running command shows every column."""
    context = click.get_current_context(silent=True)
    kinds = {parameter.name: parameter.type for parameter in context.command.params} if context is not None else {}
    formats = getattr(kinds.get("output"), "choices", ())
    return next((f"-o {name}" for name in ("md", "json") if name in formats), "--json" if "as_json" in kinds else "in a wider terminal")
