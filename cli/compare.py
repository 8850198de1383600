"""`edgekv bench compare`: results beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekv.cli.common.examples import examples
from edgekv.cli.common.number_types import FiniteNumber
from edgekv.cli.common.shared_options import option
from edgekv.cli.common.tables import NAME, Column, output_option, print_json, print_rows
from edgekv.common.errors import EXIT_OK, EXIT_RUNTIME, ConfigError

if TYPE_CHECKING:
    from edgekv.bench.compare import Comparison


def _speed(value: float) -> str:
    return f"{value:,.2f}"


COLUMNS = [
    Column("test", "test", right=False, rank=NAME),
    Column("mode", "mode", right=False, rank=NAME),
    Column("model", "model", right=False, rank=NAME),
    Column("threads", "threads"),
    Column("types", "K/V", right=False),
    Column("budget", "budget MiB"),
    Column("n_batch", "batch"),
    Column("n_ubatch", "ubatch"),
    Column("n_gpu_layers", "GPU layers"),
    Column("text", "text", right=False),
    Column("fill", "fill", right=False),
    Column("peer", "peer", right=False),
    Column("a_tokens_per_s", "A t/s", _speed, rank=7),
    Column("a_stddev", "±", _speed, rank=3),
    Column("b_tokens_per_s", "B t/s", _speed, rank=7),
    Column("b_stddev", "±", _speed, rank=3),
    Column("ratio", "B/A", lambda ratio: f"{ratio:.3f}", rank=8),
    Column("interval", "95 %", right=False, rank=6),
    Column("verdict", "B is", right=False, rank=8),
]
_ALWAYS = {"test", "mode", "a_tokens_per_s", "a_stddev", "b_tokens_per_s", "b_stddev", "ratio", "interval", "verdict"}


@click.command(epilog=examples(
    "edgekv bench compare before.json after.json",
    "edgekv bench compare llama-bench.json edgekv.json -o md",
    "edgekv bench compare main.json branch.json --fail-below 0.95",
))
@click.argument("files", metavar="A.json B.json ...", nargs=-1, type=click.Path(path_type=Path))
@option("--fail-below", type=FiniteNumber(min=0, min_open=True), metavar="RATIO",
        help="Exit with 1 where B/A of a pair is below RATIO by more than its noise, e.g. 0.95: for a check after each change.")
@output_option("json", "csv", "md")
def compare(files: tuple[Path, ...], fail_below: float | None, output: str) -> int:
    """Compare results: the speeds of B beside those of A, pair by pair.

    A and B hold rows of `edgekv bench -o json` or jsonl, or of llama-bench itself, whose rows are then compared with each of our modes. Rows
    of the same model, test, mode, threads and cache types are a pair, and of the same budget if a file has several. A line above the table names
    settings that are constant within each file but differ between them. With more than two files, each is compared with the first.

    \b
    B/A     above 1: B is faster
    95 %    the interval of B/A, from the repetitions (-r) of both
    B is    faster or slower if the interval lies on one side of 1

    The interval covers only the noise within the two runs. On a drifting machine two runs differ by more: for a claim, measure both
    in one run. With one repetition the noise is unknown.
    """
    from edgekv.bench.compare import compare as paired
    from edgekv.bench.rows import read_rows

    if len(files) < 2:
        raise ConfigError("name two files of results or more, e.g. before.json after.json")
    first, others = files[0], files[1:]
    rows_of_first = read_rows(first)
    found = [(other, paired(rows_of_first, read_rows(other))) for other in others]
    if output == "json":
        documents = [{"a": str(first), "b": str(other), "differences": [dict(zip(("what", "a", "b"), one)) for one in one.differences],
                      "rows": one.rows()} for other, one in found]
        print_json(documents if len(documents) > 1 else documents[0])
    elif output == "csv":
        print_rows([{"b": str(other), **row} for other, one in found for row in one.rows()], COLUMNS, output)
    else:
        for number, (other, one) in enumerate(found):
            if number:
                click.echo()
            _print(first, other, one, output)
    ratios = [pair.interval[1] for _, one in found for pair in one.pairs if pair.interval is not None]
    if fail_below is not None and (slow := sum(high < fail_below for high in ratios)):
        click.echo(f"{slow} of {len(ratios)} pairs are below {fail_below:g} by more than their noise", err=True)
        return EXIT_RUNTIME
    return EXIT_OK


def _print(a: Path, b: Path, found: Comparison, output: str) -> None:
    end = "  " if output == "md" else ""  # a line of its own there too
    click.echo(f"A: {a}{end}\nB: {b}{end}")
    for what, one, other in found.differences:
        click.echo(f"{what}: {one} -> {other}{end}")
    click.echo()
    rows = found.rows()
    pairs = [{**row, "interval": None if row["ratio_low"] is None else f"{row['ratio_low']:.3f} to {row['ratio_high']:.3f}"}
             for row in rows if row["in"] == "both"]
    print_rows(pairs, _needed(found, pairs, _ALWAYS), output)
    for side, path in (("A", a), ("B", b)):
        if alone := [row for row in rows if row["in"] == side]:
            click.echo(f"\nonly in {path}:\n")
            print_rows(alone, _needed(found, alone, {"test", "mode", f"{side.lower()}_tokens_per_s"}), output)


def _needed(found: Comparison, rows: list[dict[str, Any]], always: set[str]) -> list[Column]:
    """The columns of `always`, and of the settings that tell rows apart or differ between the sides."""
    def says(key: str) -> bool:
        values = {row.get(key) for row in rows} - {None}
        return key in found.keys and len(values) > 1 or any(" -> " in str(value) for value in values)

    return [column for column in COLUMNS if column.key in always or says(column.key)]
