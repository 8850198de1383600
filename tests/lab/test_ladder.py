"""edgekv.lab.questions.ladder and `edgekv lab ladder`."""

import json
import math

import pytest
from click.testing import CliRunner
from support.traces import random_trace

from edgekv.bench.text import Text
from edgekv.cli.main import cli
from edgekv.common.errors import ConfigError
from edgekv.common.machine import cpu_family
from edgekv.lab.questions import ladder
from edgekv.lab.questions.ladder import BASE, FIGURES, MEAN, RUNGS, LadderBench, of_traces, prepare, run
from edgekv.lab.traces.sim import simulate
from edgekv.lab.traces.trace import Trace

NAMES = [rung.name for rung in RUNGS]
SEEING = [name for name in NAMES if "oracle" not in name]
"""Rungs to which it matters what is observed."""
LETTERS = "the cat sat on a mat and then it ran to the sea where a fish told it the way home again "


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "noise.npz"
    random_trace().write(path)
    return path


def test_rows(trace):
    bench = of_traces((trace,), budgets=(0.1, 0.3), observe=("sampled", "honest", "full"))
    rows = run(bench, prepare(bench, trace.parent))
    assert [(row["budget"], row["observe"], row["rung"]) for row in rows] == [
        (budget, observe if name in SEEING else "ahead", name) for budget in (0.1, 0.3)
        for observe, names in (("sampled", NAMES), ("honest", SEEING), ("full", SEEING)) for name in names]
    assert all(set(FIGURES) <= set(row) for row in rows)
    with Trace.open(trace) as opened:
        for row in rows[len(rows) // 2 :]:
            rung = RUNGS[NAMES.index(row["rung"])]
            observe = "sampled" if row["observe"] == "ahead" else row["observe"]
            expected = simulate(opened, BASE.with_(budget=0.3, observe=observe, **rung.scenario)).row()
            assert [row[key] for key in ("hit_rate", "hit_rate_mass", "worst_mass", "fetched")] == \
                [expected[key] for key in ("hit_rate", "hit_rate_mass", "worst_mass", "fetched")]
    by_name = {(row["observe"], row["rung"]): row for row in rows if row["budget"] == 0.1}
    for (observe, name), row in by_name.items():
        base = RUNGS[NAMES.index(name)].base
        if base is None:
            assert row["gain"] is None and row["gain_mass"] is None
        else:
            assert row["gain"] == row["hit_rate"] - by_name[observe, base]["hit_rate"]
            assert row["gain_mass"] == row["hit_rate_mass"] - by_name[observe, base]["hit_rate_mass"]
    assert by_name["ahead", "oracle"]["hit_rate_mass"] >= max(
        row["hit_rate_mass"] for row in by_name.values() if row["split"] == "uniform" and row["prefetch"] == "none")


def test_means(trace, tmp_path):
    random_trace(7).write(tmp_path / "other.npz")
    bench = of_traces((trace, tmp_path / "other.npz"), budgets=(0.2,))
    rows = run(bench, prepare(bench, tmp_path))
    assert {row["text"] for row in rows} == {str(trace), str(tmp_path / "other.npz"), MEAN}  # one text twice: told apart by file
    for observe, name in {(row["observe"], row["rung"]) for row in rows}:
        *each, mean = (row for row in rows if (row["observe"], row["rung"]) == (observe, name))
        assert mean["text"] == MEAN and mean["hit_rate"] == pytest.approx(sum(row["hit_rate"] for row in each) / 2)
        assert len(each) == 2 and (mean["gain"] is None) == (each[0]["base"] is None)


def test_command_on_traces(trace, tmp_path):
    arguments = ["lab", "ladder", "--trace", str(trace), "--budgets", "10%,0.3"]
    result = CliRunner().invoke(cli, [*arguments, "-o", "md", "--save", str(tmp_path / "kept")])
    assert result.exit_code == 0, result.output
    head, empty, *lines = result.stdout.splitlines()
    assert head.startswith(cpu_family()) and empty == ""
    assert len(lines) == 2 + 2 * (len(NAMES) + len(SEEING))
    titles = [title.strip() for title in lines[0].strip("|").split("|")]
    assert titles == ["budget %", "rung", "sees", "published", "hits %", "gain", "by mass %", "gain", "worst %", "fetched"]
    assert "this will take about" in result.stderr
    kept = json.loads((tmp_path / "kept" / "ladder.json").read_text())
    assert [(row["kind"], row["rung"]) for row in kept] == [("ladder", name) for name in (NAMES + SEEING) * 2]
    csv = CliRunner().invoke(cli, [*arguments, "-o", "csv"]).stdout.splitlines()
    assert len(csv) == 1 + len(kept) and {"gain", "worst_mass", "cpu", "date"} <= set(csv[0].split(","))


def test_records_once(synthetic, tmp_path, monkeypatch):
    text = Text("letters", 200 * LETTERS)
    rungs = tuple(rung for rung in RUNGS if rung.name in ("lru", "+ anchors", "oracle"))
    bench = LadderBench(synthetic(), (text,), depth=200, n_steps=12, budgets=(0.25,), rungs=rungs)
    traces = prepare(bench, tmp_path)
    assert list(traces) == ["letters"] and traces["letters"].parent == tmp_path
    monkeypatch.setattr(ladder, "record", None)  # it is there
    assert prepare(bench, tmp_path) == traces
    rows = run(bench, traces)
    assert [(row["observe"], row["rung"]) for row in rows] == [
        ("sampled", "lru"), ("sampled", "+ anchors"), ("ahead", "oracle"), ("honest", "lru"), ("honest", "+ anchors")]
    assert bench.estimated_seconds() > 0
    for row in rows:
        assert row["model"] == synthetic().name and math.isfinite(row["hit_rate"])


def test_refuses_other_depths_other_budgets_and_a_file_as_folder(trace, tmp_path):
    random_trace(n_steps=30).write(tmp_path / "short.npz")
    with pytest.raises(ConfigError, match="different depths"):
        of_traces((trace, tmp_path / "short.npz"))
    for wrong in (*(("--budgets", share) for share in ("0%", "150%", "x", "")), ("-n", "0"), ("-t", "0"), ("--observe", "all"), ("--observe", "")):
        assert CliRunner().invoke(cli, ["lab", "ladder", "--trace", str(trace), *wrong]).exit_code == 2, wrong
    with pytest.raises(ConfigError, match="cannot be written"):
        ladder.save([], trace)
