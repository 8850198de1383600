"""`edgekv lab quality`: its rows, what it refuses, and its command."""

import csv
import io
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from support.benches import QUICK, SPARSE

from edgekv.bench.text import Text, find_text, standard_text
from edgekv.common.errors import ConfigError, DoesNotFit
from edgekv.common.machine import cpu_family
from edgekv.lab.commands.quality import _own_mode
from edgekv.lab.commands.quality import quality as command
from edgekv.lab.questions.quality import FIGURES, QualityBench, run
from edgekv.lab.questions.start import Start
from edgekv.lab.tasks import TASKS, Question


def rows_of(path, **settings) -> list[dict]:
    return [row for group in run(QualityBench(path, **{**QUICK, **settings})) for row in group]


def test_rows_of_texts(synthetic):
    rows = rows_of(synthetic(), texts=(standard_text(), find_text("code")))
    assert [(row["text"], row["mode"]) for row in rows] == [(text, mode) for text in ("prose", "code", "all")
                                                            for mode in ("off", "exact", SPARSE)]
    for off, exact, sparse in (rows[0:3], rows[3:6], rows[6:9]):
        assert exact["kld_exact"] is None and exact["attended_fraction"] == 1 and off["attended_fraction"] is None
        assert 0 < off["kld_exact"] < sparse["kld_exact"] and 0.1 < sparse["attended_fraction"] < 0.4
        assert sparse["kld_low_exact"] <= sparse["kld_exact"] <= sparse["kld_high_exact"] <= sparse["kld_p99_exact"]
        assert sparse["ppl"] == pytest.approx(exact["ppl"] * (1 + sparse["ppl_vs_exact"])) and sparse["kld_stock"] > 0
    assert all(row["kind"] == "text" and set(FIGURES) <= set(row) and row["task"] is None and row["depth"] == 400 for row in rows)
    means = [np.mean([rows[i][key] for i in (2, 5)]) for key in ("nll", "kld_exact", "same_top_exact")]
    assert [rows[8][key] for key in ("nll", "kld_exact", "same_top_exact")] == pytest.approx(means)


def decode_some(decoder) -> None:
    """As questions do: more than the first step, which may attend everything."""
    for token in (7, 8, 9):
        decoder.decode([token])


def test_rows_of_tasks(synthetic, monkeypatch):
    """Full attention finds what is asked, and the other mode every other answer: the counts say so."""
    told = []

    def scripted(decoder, question, lead, follow):
        decode_some(decoder)
        asked.append(question)
        sparse = decoder.llama.kv.mode == "sparse"
        return ["wrong" if sparse and len(asked) % 2 else f" {blank.expected}" for blank in question.blanks]

    asked: list[Question] = []
    monkeypatch.setattr("edgekv.lab.questions.answers.ask", scripted)
    request = QualityBench(synthetic(), **{**QUICK, "n_steps": 0, "tasks": ("lines", "passkey"), "lengths": (800, 700)})
    (rows,) = run(request, tell=told.append)
    assert [(row["task"], row["length"], row["mode"]) for row in rows] == [
        (task, length, mode) for task in ("lines", "passkey") for length in (700, 800, None)
        for mode in ("off", "exact", SPARSE)
    ] + [("all", None, mode) for mode in ("off", "exact", SPARSE)]
    by = {(row["task"], row["length"], row["mode"]): row for row in rows}
    full, half = by["lines", None, "exact"], by["lines", None, SPARSE]
    assert (full["asked"], full["full_found"], full["kept"], full["retention"], full["wrong"]) == (16, 16, 16, 1, "")
    assert (half["asked"], half["full_found"], half["kept"], half["retention"]) == (16, 16, 8, 0.5)
    assert half["wrong"].count("answered 'wrong'") == 8 and "in 700 tokens" in half["wrong"]
    assert by["lines", 700, SPARSE]["kept"] + by["lines", 800, SPARSE]["kept"] == 8
    assert by["all", None, SPARSE]["asked"] == 18 and not half["says_nothing"]
    stock = by["lines", None, "off"]
    assert (stock["full_found"], stock["kept"], stock["attended_fraction"]) == (16, 16, None), "what stock keeps stands beside"
    assert all(row["kind"] == "task" and row["text"] is None and row["nll"] is None for row in rows)


def test_a_mode_that_attended_everything_is_no_finding(synthetic, monkeypatch):
    """Below the depth where it begins to select, and where it is told to attend all: its answers do not count, and the row says so."""
    monkeypatch.setattr("edgekv.lab.questions.answers.ask", lambda decoder, question, *_: (
        decode_some(decoder), [f" {blank.expected}" for blank in question.blanks])[-1])
    deep = f"{SPARSE},exact_tokens=768"
    dropping = "evict:evict_to=416,split=uniform,policy=streaming"
    rows = rows_of(synthetic(), n_steps=4, tasks=("lines", "passkey"), lengths=(700, 900),
                   modes=(deep, SPARSE, "evict:evict_to=1000", dropping))
    for row in (row for row in rows if row["mode"] == deep and row["kind"] == "task"):
        all_asked = {"lines": 8, "passkey": 1, "all": 9}[row["task"]]
        assert row["asked"] == (0 if row["length"] == 700 else all_asked)
        assert row["note"] == (None if row["length"] == 900 else "attended everything in 700 tokens: not counted")
        assert row["retention"] == (None if row["length"] == 700 else 1)
    for row in (row for row in rows if row["mode"] == "evict:evict_to=1000"):
        assert "attended everything" in row["note"] and row["retention"] is None and row["asked"] in (None, 0)
    for row in (row for row in rows if row["mode"] in (SPARSE, dropping, "exact", "off")):
        assert not row["note"] and (row["kind"] == "text" or row["retention"] == 1)
    assert {row["note"] for row in rows if row["kind"] == "text" and row["mode"] == deep} == {
        "attended everything: that says nothing about a sparse mode"}


def test_what_full_attention_cannot_do_says_nothing(synthetic, monkeypatch):
    monkeypatch.setattr("edgekv.lab.questions.answers.ask", lambda decoder, question, *_: (decode_some(decoder), ["?"] * len(question.blanks))[-1])
    rows = rows_of(synthetic(), n_steps=0, tasks=("lines", "passkey"))
    assert all(row["says_nothing"] and row["retention"] is None for row in rows)
    assert [row["asked"] for row in rows] == 3 * [8] + 3 * [1] + 3 * [0]


def test_every_task_runs_on_random_weights(synthetic):
    rows = rows_of(synthetic(), n_steps=0, tasks=tuple(TASKS), modes=(SPARSE,))
    assert {row["task"] for row in rows} == {*TASKS, "all"} and {row["mode"] for row in rows} == {"off", "exact", SPARSE}
    for row in rows:
        assert row["asked"] > 0 or row["task"] == "all"
        assert row["mode"] != SPARSE or row["task"] == "all" or 0 < row["attended_fraction"] < 1


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"modes": ("fish",)}, "there is no bench mode"), ({"modes": ("off-noflash",)}, "cannot take turns"),
    ({"tasks": ("fish",)}, "there is no task 'fish'; choose one of: passkey"), ({"n_steps": 0}, "nothing to measure"),
    ({"lengths": (100,)}, "256 tokens or more"), ({"depth": 10}, "256 tokens or more")])
def test_bad_requests(synthetic, settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        QualityBench(synthetic(), **{**QUICK, **settings})


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"texts": (Text("short", "hello"),)}, "short has only 6 tokens"),
    ({"depth": 4090}, "a depth of 4090 with 12 steps needs 4119 tokens, and .* was trained for 4096"),
    ({"tasks": ("passkey",), "lengths": (4096,)}, "with the questions, and .* was trained for 4096; use smaller --lengths"),
    ({"texts": (Text("short", "Hello you. " * 80),), "tasks": ("passkey",), "lengths": (2000,)}, "too little text")])
def test_what_does_not_go_is_said_at_once(synthetic, settings, sentence, monkeypatch):
    monkeypatch.setattr(Start, "read", None)
    with pytest.raises(ConfigError, match=sentence):
        rows_of(synthetic(), **settings)


def test_defaults_follow_the_trained_context(synthetic):
    rows = rows_of(synthetic(n_ctx_train=600), depth=None, n_steps=4)
    assert {row["depth"] for row in rows} == {600 - 16 - 4 - 1}
    with pytest.raises(ConfigError, match="no task of 1024 tokens or more fits the 600 tokens"):
        rows_of(synthetic(n_ctx_train=600), n_steps=0, tasks=("passkey",), lengths=None)


@pytest.mark.parametrize("kind", ["gemma2", "lfm2"])
def test_models_that_keep_more_than_rows(synthetic, kind):
    """Each mode, text and question starts from the same windows and states."""
    rows = rows_of(synthetic(kind), tasks=("lines",))
    kld = {row["mode"]: row["kld_exact"] for row in rows if row["kind"] == "text"}
    assert kld["off"] < 1e-4 < kld[SPARSE], kld
    assert any(row["kind"] == "task" and row["asked"] for row in rows)


def test_no_memory(synthetic, monkeypatch):
    monkeypatch.setattr("edgekv.opening.available_bytes", lambda: 1 << 20)
    with pytest.raises(DoesNotFit, match="a context for .* does not fit: .*; use smaller -d"):
        rows_of(synthetic())


def invoke(*arguments: str):
    return CliRunner().invoke(command, arguments)


def test_command(synthetic, tmp_path):
    text = tmp_path / "own.txt"
    text.write_text(standard_text().content[:9000])
    arguments = (str(synthetic()), "--modes", f"exact,{SPARSE}", "--text", str(text), "-d", "300", "-n", "4",
                 "--tasks", "passkey,records", "--lengths", "700", "-t", "1")
    result = invoke(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["kind"] for row in rows] == ["text"] * 3 + ["task"] * 9 and rows[0]["text"] == "own.txt"
    assert len({tuple(row) for row in rows}) == 1, "CSV has one header"
    tables = invoke(*arguments).stdout
    head, first, second = tables.split("\n\n")
    verdict, where = head.splitlines()
    ours, noise = re.fullmatch(rf"{re.escape(SPARSE)} is [\d.]+ times as far from full attention as llama.cpp's own kernels: "
                               r"divergence (\S+) against (\S+)", verdict).groups()
    assert [ours in line and SPARSE in line or noise in line and " off " in line for line in first.splitlines()[1:]] == [True, False, True], "as in the table"
    assert where.startswith(cpu_family()) and all(row["cpu"] == cpu_family() and row["date"] for row in rows)
    assert first.split()[:3] == ["text", "mode", "depth"] and len(first.splitlines()) == 4
    assert second.split()[:3] == ["task", "mode", "asked"] and len(second.splitlines()) == 10 and "says nothing" in second
    assert "note" not in first.splitlines()[0]
    parsed = list(csv.DictReader(io.StringIO(invoke(*arguments[:-6], "--tasks", "none", "-t", "1", "-o", "csv").stdout)))
    assert len(parsed) == 3 and parsed[2]["mode"] == SPARSE
    assert {invoke(*wrong).exit_code for wrong in (("-n", "-1"), ("--samples", "0"), ("-t", "0"))} == {2}


def test_options_that_make_a_mode(synthetic):
    assert _own_mode(None, None) == ()
    assert _own_mode("h2o", None) == ("evict:policy=h2o,evict_to=12.5%",) and _own_mode(None, "20%") == ("evict:evict_to=20%",)
    (name,) = _own_mode("ema+anchor", "40%")
    common = (str(synthetic()), "--text", "prose", "-d", "300", "-n", "2", "--tasks", "none", "-t", "1", "-o", "json")
    rows = json.loads(invoke(*common, "--policy", "ema+anchor", "--budget", "40%").stdout)
    assert [row["mode"] for row in rows] == ["off", "exact", name] and name == "evict:policy=ema+anchor,evict_to=40%"
    assert rows[2]["kld_exact"] > 0 and rows[2]["note"] is None, "what the policy did not keep is gone"
    assert isinstance(invoke(*common, "--policy", "fish").exception, ConfigError)
    assert isinstance(invoke(*common, "--tasks", "fish").exception, ConfigError)
    assert "'fish'" in str(invoke(*common, "--tasks", "default,fish").exception)
    assert invoke(*common, "--lengths", "many").exit_code == 2
