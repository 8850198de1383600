"""The report's parts from rows of `edgekv bench`, from the plan and from servers."""

import json

import click
import pytest
from click.testing import CliRunner
from support.results import ENVIRONMENT, bench_rows
from support.servers import history_document, plan_document, serve_rows, state_documents

from edgekv.lab.commands.report import report as command
from edgekv.lab.report import inputs, page
from edgekv.lab.report.charts import Line
from edgekv.lab.report.machines import machine, planned
from edgekv.lab.report.sections import LIMIT, Section
from edgekv.lab.report.servers import clients, memory_over_time, over_time
from edgekv.lab.report.speeds import _by_test, _estimates, _lines, _speed_points, answers, hits, memory, prompts


def known(rows: list[dict]) -> list[dict]:
    return [inputs._known(row) for row in rows]


def curves(rows: list[dict]) -> dict[str, dict[str, tuple[list, list]]]:
    """By panel, by line: depths and speeds."""
    return {title: {line.name: (line.x, line.y) for line in _lines(points)} for title, points in _by_test(rows, _speed_points).items()}


def texts(section: Section) -> list[str]:
    """What stands in its pictures."""
    axes = [ax for picture in section.pictures for ax in picture.figure.axes]
    return [said for ax in axes for said in (*(text.get_text() for text in ax.texts), ax.get_title(loc="left"), ax.get_xlabel())]


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


def test_gains_are_told():
    rows = known(bench_rows(ratio_vs_stock=4.0))
    assert "sparse comes to 80.0 tokens/s, 4.0 times the better of stock's kernels." in answers(rows, None).text


def test_speed_of_prompts():
    section = prompts(known(bench_rows()), None)
    assert "first token ms" in section.tables[0].columns and len(section.tables[0].rows) == 12
    assert "Dotted" not in section.pictures[0].caption


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


def test_one_depth_is_a_table_alone():
    section = answers(known(bench_rows(depths=(4000,))), None)
    assert not section.pictures and len(section.tables[0].rows) == 4


def test_hits():
    other = {**ENVIRONMENT, "family": "Intel Xeon, Ice Lake"}
    section = hits(known([*bench_rows(), *bench_rows(environment=other)]))
    assert len(section.tables) == 2 == len(section.pictures)
    assert section.tables[0].rows[-1][:2] == ["8,000", "sparse"]
    of = dict(zip(section.tables[0].columns, section.tables[0].rows[-1]))
    assert (of["hits %"], of["rows a head"], of["read %"], of["coverage %"], of["moved KiB a token"]) == ("60.0", "474", "5.9", "98.0", "4.0")
    assert (of["by mass %"], of["error %"]) == ("80.0", "1.0") and hits([]).missing


def test_texts_are_panels_of_their_own():
    rows = known([*bench_rows(("sparse",)), *bench_rows(("sparse",), text="code")])
    assert list(curves(rows)) == [f"{test}, 2 threads, {text}" for text in ("prose", "code") for test in ("pp512", "tg64")]


def test_prompts_and_predictions_stand_in_the_tables():
    section = prompts(known(bench_rows()), None)
    of = dict(zip(section.tables[0].columns, section.tables[0].rows[-1]))
    assert (of["attention %"], of["ns/pair"]) == ("20", "7.80")
    of = dict(zip((table := answers(known(bench_rows()), None).tables[0]).columns, table.rows[-1]))
    assert (of["text"], of["limit ms"], of["x limit"], of["KLD"], of["KLD exact"]) == ("prose", "10.00", "1.25", "4.0e-03", "6.0e-03")


def test_memory_is_the_most_of_a_mode_at_a_depth():
    rows = known(bench_rows())
    for row in rows:
        row["ram_peak_mib"] += 5 * (row["n_prompt"] > 0)
    section = memory(rows)
    assert [line[:2] + line[-1:] for line in section.tables[0].rows if line[0] == "8,000"] == [
        ["8,000", "stock llama.cpp", "455"], ["8,000", "exact", "455"], ["8,000", "sparse", "495"]]
    assert "GPU memory" not in section.tables[0].columns and "host memory, all tests, 2 threads" in texts(section)


def test_the_plan():
    section = planned(known([plan_document()]))
    assert section.text.startswith("tiny.gguf: 8,192 tokens, mode sparse. On a processor 900,000 tokens fit. Recommended is sparse:")
    assert "/elsewhere" not in section.text, "whose folders these are is nobody's business"
    assert section.tables[0].rows[-1] == ["all", "host", "113.0 MiB", "–", "of 24.0 GiB free"]
    assert {"answers", "prompts", "stock llama.cpp"} <= set(texts(section))
    problem = planned(known([{**plan_document(), "problem": "no context fits beside the weights."}]))
    assert "It does not fit: no context fits" in problem.text


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


def test_servers_under_clients():
    section = clients(known([*serve_rows(1), *serve_rows(4)]))
    assert {"all answers together", "first token of a new prompt", "clients at the same time", "off-noflash"} <= set(texts(section))
    assert [row[:3] for row in section.tables[0].rows[:5]] == [[server, "read", "1"] for server in ("off-flash", "off-noflash", "exact", "sparse")] + [
        ["off-flash", "decode", "1"]]
    one = clients(known(serve_rows(4)))
    assert not one.pictures and len(one.tables[0].rows) == 8


def test_a_server_over_time():
    section = over_time([history_document()])
    assert section.pictures[0].caption == "3 points of 3 seconds."
    assert {"speed", "hits and reads", "error of a head's output", "copied into the arena"} <= set(texts(section))
    assert over_time([{"at": [1.0], "tokens_per_second": [1.0]}]).missing
    exact = {**history_document(), **dict.fromkeys(("read", "hit_rate", "hit_rate_mass", "error"), [None] * 3)}
    assert "hits and reads" not in texts(over_time([exact]))


def test_memory_over_time():
    section = memory_over_time(state_documents())
    assert section.tables[0].rows == [("arena", "36.0", "2.5", "15.0"), ("home", "180.0", "10.0", "60.0"), ("sketches", "18.0", "–", "–")]
    lines: list[Line] = [line for line in section.pictures[0].figure.axes[0].lines if len(line.get_xdata()) == 3]
    assert [list(line.get_ydata()) for line in lines] == [[2.5, 7.5, 15.0], [10.0, 30.0, 60.0]]
    assert not memory_over_time(state_documents()[:2]).pictures and memory_over_time(state_documents()[:1]).missing


def test_documents_are_known_by_what_they_hold(tmp_path):
    for name, content in {"plan": plan_document(), "history": history_document(), "serve": serve_rows(1)}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "state.jsonl").write_text("\n".join(json.dumps(state) for state in state_documents()))
    (tmp_path / "bench.jsonl").write_text("\n".join(json.dumps(row) for row in bench_rows()))
    found = inputs.read(tmp_path)
    assert (len(found.plans), len(found.histories), len(found.serves), len(found.states), len(found.speeds)) == (1, 1, 8, 4, 24)
    assert not found.ignored and found.speeds[0]["model"] == "tiny.gguf" == found.plans[0]["model"]
    written = page.write(tmp_path)
    assert "Made by EdgeKV" in written.path.read_text() and "rows of speeds: 24" in written.path.read_text()
