"""Prints rows as a table, JSON, CSV or Markdown, for all commands that answer with rows."""

import csv
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import click

from edgekv.cli.common.shared_options import option

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of a table. show(value): its text; None and NaN are dashes."""

    key: str
    title: str
    show: Callable[[Any], str] = str
    right: bool = True

    def cell(self, row: Row) -> str:
        value = row.get(self.key)
        return "-" if value is None or isinstance(value, float) and math.isnan(value) else self.show(value)


def output_option(*formats: str) -> Callable[[Callable], Callable]:
    """The option `-o/--output`; "table" is the first choice and the default."""
    choices = ("table", *formats)
    return option("-o", "--output", type=click.Choice(choices), default="table", show_default=True, help="How to print.")


def print_measured(rows: Sequence[Row], columns: list[Column], output: str) -> None:
    """`print_rows`, with a line above a table that says where and when the rows were measured; JSON and CSV say it in each row."""
    if output in ("table", "md"):
        click.echo(measured_on(rows) + "\n")
    print_rows(rows, columns, output)


def measured_on(rows: Iterable[Row]) -> str:
    """Processor, date, model and version of the rows, each value once."""
    rows = list(rows)
    parts = (("cpu", "{}"), ("cores", "{} cores"), ("date", "{}"), ("model", "{}"), ("version", "EdgeKV {}"), ("isa", "{} kernels"))
    return "; ".join(form.format(", ".join(found)) for key, form in parts
                     if (found := dict.fromkeys(str(row[key]) for row in rows if row.get(key) is not None)))


def print_rows(rows: Sequence[Row], columns: list[Column], output: str) -> None:
    """Print `rows` on standard output: the `columns` as a table or Markdown, every key as JSON or CSV."""
    if output == "json":
        print_json(rows)
    elif output == "csv":
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]) if rows else [c.key for c in columns], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif output == "md":
        _print_markdown(rows, columns)
    elif sys.stdout.isatty():
        _print_rich(rows, columns)
    else:
        _print_plain(rows, columns)


def print_json(value: Any) -> None:
    click.echo(json.dumps(_without_nan(value), indent=2, ensure_ascii=False))


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


def _without_nan(value: Any) -> Any:
    """The value with null for NaN, which JSON does not have."""
    if isinstance(value, float):
        return None if math.isnan(value) or math.isinf(value) else value
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value


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


def _print_rich(rows: Iterable[Row], columns: list[Column]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, pad_edge=False)
    for c in columns:
        table.add_column(c.title, justify="right" if c.right else "left", no_wrap=c.right, overflow="ellipsis")
    for row in rows:
        table.add_row(*(Text(c.cell(row)) for c in columns))
    Console().print(table)
