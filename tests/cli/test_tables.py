"""cli/common/tables.py: the same rows as plain text, in a terminal, as JSON, CSV and Markdown."""

import csv
import io
import json

import click
import pytest
from click.testing import CliRunner

from edgekv.cli.common import tables
from edgekv.cli.common.tables import Column, output_option, print_json, print_rows

COLUMNS = [Column("name", "name", right=False), Column("share", "share %", lambda share: f"{100 * share:.1f}")]
ROWS = [{"name": "first", "share": 0.5, "extra": [1, 2]}, {"name": "se|cond", "share": None, "extra": []},
        {"name": "third", "share": float("nan"), "extra": []}]


def test_plain(capsys):
    print_rows(ROWS, COLUMNS, "table")
    assert capsys.readouterr().out == "name     share %\nfirst       50.0\nse|cond        -\nthird          -\n"


def test_terminal(monkeypatch, capsys):
    monkeypatch.setattr(tables.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    print_rows(ROWS, COLUMNS, "table")
    out = capsys.readouterr().out
    assert "share %" in out and "50.0" in out and "─" in out


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
