"""The report's parts from rows of `edgekv bench`, from the plan and from servers."""

import json

import click
import pytest
from click.testing import CliRunner
from support.results import ENVIRONMENT, bench_rows
from support.servers import plan_document

from edgekv.lab.commands.report import report as command
from edgekv.lab.report import inputs
from edgekv.lab.report.machines import machine
from edgekv.lab.report.sections import LIMIT, Section
from edgekv.lab.report.speeds import _by_test, _estimates, _lines, _speed_points, answers, memory


def known(rows: list[dict]) -> list[dict]:
    return [inputs._known(row) for row in rows]


def curves(rows: list[dict]) -> dict[str, dict[str, tuple[list, list]]]:
    """By panel, by line: depths and speeds."""
    return {title: {line.name: (line.x, line.y) for line in _lines(points)} for title, points in _by_test(rows, _speed_points).items()}


def texts(section: Section) -> list[str]:
    """What stands in its pictures."""
    figures = [picture.figure for picture in section.pictures]
    names = [text.get_text() for figure in figures for legend in figure.legends for text in legend.get_texts()]
    return [*names, *(said for figure in figures for ax in figure.axes for said in (ax.get_title(loc="left"), ax.get_xlabel()))]


def test_stock_is_its_faster_kernel_at_each_depth():
    rows = known(bench_rows())
    for row in rows:  # with an empty cache the other one is faster
        row["best_stock"] = row["kv_mode"] == ("off-flash" if row["n_depth"] == 0 else "off-noflash")
        row["avg_ts"] += row["kv_mode"] == "off-flash"
    found = curves(rows)
    assert list(found) == ["pp512, 2 threads", "tg64, 2 threads"]
    depths, speeds = found["tg64, 2 threads"]["stock llama.cpp"]
    assert depths == [0, 4000, 8000] and speeds == pytest.approx([101, 1e3 / 30, 20])
    assert found["tg64, 2 threads"][LIMIT][1] == pytest.approx([100] * 3, rel=0.02)


def test_speed_of_answers(tmp_path):
    section = answers(known(bench_rows()), known([plan_document()])[0])
    assert "With 8,000 tokens in the context sparse comes to 80.0 tokens/s, no more than stock." in section.text
    assert {"sparse", "exact", "stock llama.cpp", LIMIT, "tg64, 2 threads", "tokens in the context"} <= set(texts(section))
    (table,) = section.tables
    assert len(table.rows) == 12 and "note" not in table.columns and "first token ms" not in table.columns
    assert table.rows[-1][: table.columns.index("tokens/s") + 1] == ["tg64", "8,000", "sparse", "prose", "2", "f16/f16", "36", "80.00"]
    assert section.pictures[0].caption == "Dotted: what the plan estimates. tiny.gguf; prose; EdgeKV 1; AMD EPYC, Zen 4, AVX-512; 2026-11-22"


def test_the_plan_is_drawn_beside_its_own_model_only():
    (plan,) = known([plan_document()])
    rows = known(bench_rows())
    found = _estimates(plan, rows, "decode")
    assert set(found) == {"off", "exact", "sparse"}
    drawn = [line for line in _lines(_by_test(rows, _speed_points)["tg64, 2 threads"], found) if line.estimate]
    assert [line.x for line in drawn] == [[4000, 8000]] * 3, "no further than what was measured"
    assert _estimates({**plan, "model": "other.gguf"}, rows, "decode") == {} == _estimates(None, rows, "decode")


def test_budgets_of_one_mode_are_lines_of_their_own():
    rows = known([*bench_rows(("sparse",), kv_budget_mib=16.0), *bench_rows(("sparse",), kv_budget_mib=0.0)])
    assert list(curves(rows)["tg64, 2 threads"]) == ["sparse, 16 MiB", "sparse, 0 MiB", LIMIT]
    growing = [{**row, "kv_budget_mib": 10 + row["n_depth"] / 100} for row in known(bench_rows(("sparse",)))]
    assert list(curves(growing)["tg64, 2 threads"]) == ["sparse", LIMIT]


def test_what_does_not_fit_stands_in_the_table():
    without = bench_rows(("exact",), (64000,), avg_ts=None, note="does not fit: 40 GiB of 24 free", limit_ratio=None)
    section = answers(known([*bench_rows(), *without]), None)
    assert section.tables[0].rows[-1][-1] == "does not fit: 40 GiB of 24 free" and len(section.tables[0].rows) == 13


def test_machines_stand_apart():
    other = {**ENVIRONMENT, "family": "Intel Xeon, Ice Lake"}
    rows = known([*bench_rows(), *bench_rows(environment=other)])
    section = answers(rows, None)
    assert len(section.tables) == 2 == len(section.pictures) and all(len(table.rows) == 12 for table in section.tables)
    (table,) = machine(rows).tables
    assert table.columns == ["", "machine 1", "machine 2"] and ["family", "AMD EPYC, Zen 4, AVX-512", "Intel Xeon, Ice Lake"] in table.rows
    assert ["memory rate, measured", "18.3 GB/s", "18.3 GB/s"] in table.rows


def test_memory_is_the_most_of_a_mode_at_a_depth():
    rows = known(bench_rows())
    for row in rows:
        row["ram_peak_mib"] += 5 * (row["n_prompt"] > 0)
    section = memory(rows)
    assert [line[:2] + line[-1:] for line in section.tables[0].rows if line[0] == "8,000"] == [
        ["8,000", "stock llama.cpp", "455"], ["8,000", "exact", "455"], ["8,000", "sparse", "495"]]
    assert "GPU memory" not in section.tables[0].columns and "host memory, all tests, 2 threads" in texts(section)


def test_the_plan_of_a_model(tmp_path, monkeypatch):
    """As the command prints it."""
    asked = []

    @click.command()
    @click.argument("model")
    @click.option("--json", "as_json", is_flag=True)
    def plan(model: str, as_json: bool) -> int:
        asked.append((model, as_json))
        click.echo(json.dumps(plan_document()))
        return 4  # a plan that does not fit is one

    monkeypatch.setattr("edgekv.cli.plan.plan", plan)
    done = CliRunner().invoke(command, [str(tmp_path), "-m", "tiny.gguf"])
    assert done.exit_code == 0, done.output
    assert asked == [("tiny.gguf", True)] and '<section id="plan">' in (tmp_path / "report.html").read_text()
    assert "EdgeKV: tiny<" in (tmp_path / "report.html").read_text() and done.stdout.strip() == str(tmp_path / "report.html")


