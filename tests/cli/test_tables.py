"""cli/common/tables.py: the same rows as plain text, in a terminal, as JSON, CSV and Markdown."""

import csv
import io
import json
import sys

import click
import pytest
from click.testing import CliRunner
from support.terminal import TerminalScreen

from edgekv.cli.common.tables import NAME, Column, fitting, output_option, print_json, print_rows
from edgekv.cli.compare import COLUMNS as COMPARED
from edgekv.cli.models import LIST_COLUMNS
from edgekv.lab.commands.ladder import COLUMNS as LADDER
from edgekv.lab.commands.quality import TASK_COLUMNS, TEXT_COLUMNS

COLUMNS = [Column("name", "name", right=False), Column("share", "share %", lambda share: f"{100 * share:.1f}")]
ROWS = [{"name": "first", "share": 0.5, "extra": [1, 2]}, {"name": "se|cond", "share": None, "extra": []},
        {"name": "third", "share": float("nan"), "extra": []}]


def test_plain(capsys):
    print_rows(ROWS, COLUMNS, "table")
    assert capsys.readouterr().out == "name     share %\nfirst       50.0\nse|cond        -\nthird          -\n"


WIDE = [
    Column("name", "name", right=False, rank=NAME), Column("mode", "mode", right=False, rank=NAME), Column("nll", "likelihood", rank=2),
    Column("kld", "divergence", rank=8, score=lambda row: -row["kld"]), Column("top", "top %", rank=7), Column("error", "error %", rank=3),
    Column("trained", "trained for", rank=3), Column("fits", "fits now", rank=3), Column("note", "note", right=False, rank=8, least=16),
]


def wide(name: str) -> list[dict]:
    return [{"name": text, "mode": mode, "nll": 2.5, "kld": kld, "top": 99.5, "error": 1.25, "trained": 131072, "fits": 8192,
             "note": "attended everything: the sample is larger than the context" if mode == "sparse" else None}
            for text in (name, "prose") for mode, kld in (("exact", 3), ("sparse", 2), ("sparse:sample_budget=1000", 4))]


def seen(monkeypatch, width: int, rows: list[dict], columns: list[Column], groups: tuple[str, ...] = ()) -> TerminalScreen:
    """A screen that shows the rows as a terminal of `width` columns does."""
    screen = TerminalScreen(width)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    @click.command()
    @output_option("json", "md")
    def command(output):
        print_rows(rows, columns, output, groups)

    command.main([], standalone_mode=False)
    return screen


@pytest.mark.parametrize(("width", "gone"), [(80, ["likelihood", "error %", "trained for", "fits now"]), (110, ["likelihood"]), (200, [])])
def test_a_terminal_shows_names_whole_and_what_matters_most(monkeypatch, width, gone):
    lines = seen(monkeypatch, width, wide("SmolLM2-135M"), WIDE).shown().splitlines()
    assert [c.title for c in WIDE if c.title not in lines[0]] == gone
    assert [line.split()[:2] for line in lines if line.startswith(("Smol", "prose"))] == [[row["name"], row["mode"]] for row in wide("SmolLM2-135M")]
    assert lines[-1].endswith(f"{len(gone)} more column{'s' * (len(gone) > 1)}: -o md") == bool(gone) and "…" not in "".join(lines)
    assert "attended everything: the sample is larger than the context" in " ".join(" ".join(lines).split()) or width < 200


def test_a_name_longer_than_the_terminal_is_whole(monkeypatch):
    name = "".join(map(str, range(60)))
    lines = seen(monkeypatch, 80, [{"name": name, "mode": "exact"}], WIDE[:2]).shown().splitlines()
    assert "".join(line.split()[0] for line in lines[2:]) == name


def test_groups_are_apart_and_the_best_of_each_is_marked(monkeypatch):
    screen = seen(monkeypatch, 110, wide("code"), WIDE, groups=("name",))
    lines = screen.shown().splitlines()
    assert [line.split()[0] if line else "" for line in lines[2:-1] if not line.startswith(" ")] == [*["code"] * 3, "", *["prose"] * 3]
    bold = {"".join(cell.data for _, cell in sorted(screen.screen.buffer[y].items()) if cell.bold).strip() for y in range(2, len(lines))} - {""}
    assert bold == {"2"}


@pytest.mark.parametrize("width", [80, 110, 200])
@pytest.mark.parametrize("columns", [TEXT_COLUMNS, TASK_COLUMNS, LADDER, LIST_COLUMNS, COMPARED],
                         ids=["quality", "tasks", "ladder", "models", "compare"])
def test_each_table_fits(width, columns):
    """Its names, of usual lengths, and at least two figures have room."""
    names = [c for c in columns if c.rank == NAME]
    row = {c.key: "sparse:sample_budget=1000" if c.key == "mode" else "a name of 16 let" for c in names if not c.right}
    found = fitting([row], columns, width)
    assert set(names) < set(found) and len(found) >= len(names) + 2
    assert sum(found.values()) + 2 * (len(found) - 1) <= width


def test_json(capsys):
    print_rows(ROWS, COLUMNS, "json")
    rows = json.loads(capsys.readouterr().out)
    assert rows[0] == ROWS[0] and rows[2]["share"] is None
    print_json({"value": (1.0, float("inf"))})
    assert json.loads(capsys.readouterr().out) == {"value": [1.0, None]}


def test_csv(capsys):
    print_rows([{"name": "a,b", "share": 0.25}, {"name": "c", "share": None}], COLUMNS, "csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows == [{"name": "a,b", "share": "0.25"}, {"name": "c", "share": ""}]


def test_markdown(capsys):
    print_rows(ROWS, COLUMNS, "md")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["| name | share % |", "|---|---:|", "| first | 50.0 |"]
    assert lines[3] == "| se\\|cond | - |"


@pytest.mark.parametrize("output", ["table", "json", "csv", "md"])
def test_no_rows(output, capsys):
    print_rows([], COLUMNS, output)
    assert capsys.readouterr().out.strip() != "" or output == "json"


def test_output_option():
    @click.command()
    @output_option("json")
    def command(output):
        click.echo(output)

    run = CliRunner().invoke
    assert run(command, []).output == "table\n"
    assert run(command, ["-o", "json"]).output == "json\n"
    assert run(command, [], env={"EDGEKV_OUTPUT": "json"}).output == "json\n"
    assert run(command, ["-o", "csv"]).exit_code == 2
