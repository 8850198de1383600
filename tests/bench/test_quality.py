"""`edgekv quality`: its intervals, its counts, the way back to where modes start, its rows and its command."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from support.decoding import kld

from edgekv.bench import asking
from edgekv.bench.answers import Answers, Plan
from edgekv.bench.harness.effort import Effort, Kind, Work
from edgekv.bench.harness.measured import Measured
from edgekv.bench.harness.modes import find_mode
from edgekv.bench.harness.passes import Caches, opened, read
from edgekv.bench.likeness import compare
from edgekv.bench.quality import COUNTS, FIGURES, QualityBench, run
from edgekv.bench.start import Start
from edgekv.bench.tasks import Blank, Question
from edgekv.bench.texts.text import Text, find_text, standard_text
from edgekv.cli.common.progress import Lines, progress_bar
from edgekv.cli.quality import _own_mode
from edgekv.cli.quality import quality as command
from edgekv.errors import ConfigError, DoesNotFit, EdgeKVError
from edgekv.lab.intervals import of_mean, wilson
from edgekv.lab.retention import Retention
from edgekv.machine import cpu_family

SPARSE = "sparse:resolution=20,exact_tokens=0,recent_tokens=16"
QUICK = {"texts": (standard_text(),), "modes": ("exact", SPARSE), "depth": 400, "n_steps": 12, "tasks": (), "lengths": (700,)}


# ---- arithmetic -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("found", "asked", "low", "high"), [
    (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718), (29, 29, 0.8830, 1.0)])
def test_wilson(found, asked, low, high):
    """R. G. Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I; the last is 0 of 29 turned round."""
    assert wilson(found, asked) == pytest.approx((low, high), abs=6e-5)


def test_wilson_of_nothing():
    assert wilson(0, 0) == (0, 1)
    for found, asked in ((2, 1), (-1, 3)):
        with pytest.raises(ValueError):
            wilson(found, asked)


def test_the_mean_of_independent_values_has_the_normal_interval():
    x = np.random.default_rng(1).normal(3, 2, 1000)
    low, high = of_mean(x)
    assert (low + high) / 2 == pytest.approx(x.mean(), abs=0.03)
    assert high - low == pytest.approx(2 * 1.96 * x.std() / np.sqrt(1000), rel=0.12)


def test_neighbours_that_go_together_widen_the_interval():
    """And it holds the true mean about as often as it says, where one that takes positions for independent does not."""
    random = np.random.default_rng(2)
    hits = alone = 0
    for _ in range(100):
        x = np.repeat(random.exponential(1, 64), 4)
        low, high = of_mean(x)
        hits += low <= 1 <= high
        half = 1.96 * x.std() / np.sqrt(len(x))
        alone += abs(x.mean() - 1) <= half
    assert hits >= 80 > alone + 5


def test_interval_of_few_values():
    assert of_mean([2.0]) == (2, 2) and of_mean([2.0, 2.0, 2.0]) == pytest.approx((2, 2))
    assert all(np.isnan(of_mean([])))
    low, _ = of_mean([0.0] * 30 + [1.0])
    assert low >= 0, "a divergence is not negative"


def test_distance():
    random = np.random.default_rng(3)
    logits = random.normal(0, 1, (200, 50)).astype(np.float32)
    noise = random.normal(0, 0.3, logits.shape).astype(np.float32)
    targets = random.integers(0, 50, 200).tolist()
    reference, other = Measured(), Measured()
    reference.compare({}, list(logits), targets)
    other.compare({"exact": list(logits)}, list(logits + noise), targets)
    figures, expected = other.distance("exact", reference), kld(logits, logits + noise)
    assert figures["kld_exact"] == pytest.approx(expected.mean()) and figures["kld_p99_exact"] == pytest.approx(np.percentile(expected, 99))
    assert figures["kld_low_exact"] < figures["kld_exact"] < figures["kld_high_exact"] < figures["kld_p99_exact"]
    assert figures["same_top_exact"] == np.mean(logits.argmax(1) == (logits + noise).argmax(1))
    difference = np.mean(other.nll) - np.mean(reference.nll)
    assert figures["nll_minus_exact"] == pytest.approx(difference) and figures["ppl_vs_exact"] == pytest.approx(np.exp(difference) - 1)
    assert figures["ppl_low_exact"] < figures["ppl_vs_exact"] < figures["ppl_high_exact"]
    both = other + other
    assert len(both.nll) == 400 and both.distance("exact", reference + reference)["kld_exact"] == pytest.approx(figures["kld_exact"])


def test_retention():
    one = Retention.of((True, True, False, False), (True, False, True, False))
    assert one == Retention(4, 2, 2, 1) and one.share == 0.5
    row = (one + Retention(6, 6, 6, 6)).row()
    assert set(row) | {"wrong"} == set(COUNTS)
    assert (row["asked"], row["full_found"], row["found"], row["kept"], row["extra"]) == (10, 8, 8, 7, 1)
    assert row["retention"] == 7 / 8 and (row["retention_low"], row["retention_high"]) == wilson(7, 8)
    assert Retention(9, 4).says_nothing and not Retention(9, 5).says_nothing and not Retention(3, 2).says_nothing
    assert Retention().row()["retention"] is None and Retention().says_nothing
    with pytest.raises(ValueError):
        Retention.of((True,), (True, False))


def test_what_guesses_find_says_nothing():
    """True or false: six of eight may be luck, eight are not."""
    six, eight = (sum((Retention.of((i < n,), (True,), 0.5) for i in range(8)), Retention()) for n in (6, 8))
    assert six.luck == eight.luck == 4 and six.says_nothing and not eight.says_nothing
    assert not Retention(8, 6).says_nothing and eight.row()["luck"] == 4 and not (eight + Retention(8, 8, 8, 8)).says_nothing


def test_effort():
    effort = Effort([Work(Kind.READ, 50, 100), Work(Kind.READ, 150, 100), Work(Kind.DECODE, 200, 10), Work(Kind.DECODE, 200, 10)])
    effort.add(Work(Kind.READ, 50, 100), 100 * (1 + 50 * 0.1))
    effort.finish()
    assert effort.seconds_in_all() is None is effort.seconds_left()
    effort.add(Work(Kind.READ, 150, 100), 100 * (1 + 150 * 0.1))
    effort.finish()
    effort.add(Work(Kind.DECODE, 200, 5), 20)
    assert effort.seconds_left() == pytest.approx(15 * 4), "tokens that are decoded take longer than those that are read"
    assert effort.seconds_in_all() == pytest.approx(600 + 1600 + 80) and effort.n_done == 205 and effort.n_tokens == 220
    effort.finish()
    assert effort.seconds_left() == pytest.approx(40) and effort.n_done == 210, "a shorter answer than planned leaves no time behind"
    effort.add(Work(Kind.DECODE, 200, 50), 200)
    assert effort.n_done == 220 and effort.seconds_left() == 0
    effort.finish()
    assert effort.n_done == 220 and effort.seconds_left() == 0


def test_progress_off_a_terminal():
    """A line when a part is finished, one every half minute within it, and nothing of runs that are over at once."""
    said, now = [], [0.0]
    lines = Lines(lambda: now[0], said.append)
    for now[0], what, done, left in ((1, "prose: read", 0, None), (29, "prose: off", 100, None), (40, "prose: exact", 200, 90.0),
                                     (69, "prose: sparse", 300, 80.0), (71, "prose: ema", 400, 75.0), (73.5, "code: read", 500, 70.0),
                                     (74, "passkey: read", 501, 70.0), (104, "passkey: off", 600, None)):
        lines(what, done, 1000, left)
    now[0] = 200
    lines.close()
    assert said == ["prose: exact, 20 % done, about 90 s left".replace("90 s", "2 min"), "prose: ema, 40 % done, about 75 s left",
                    "prose finished; code: read, 50 % done, about 70 s left", "passkey: off, 60 % done, about 69 s left",
                    "passkey finished, after 3 min in all"]
    short, silent = Lines(lambda: now[0], said.append), len(said)
    for what in ("a", "b: c", "d"):
        short(what, 1, 2)
    short.close()
    assert len(said) == silent


def test_time_left_where_the_caller_does_not_know():
    """By a rule of three, from where a count begins."""
    said, now = [], [0.0]
    lines = Lines(lambda: now[0], said.append)
    for now[0], done, total in ((0, 0, 50), (10, 50, 50), (20, 0, 1000), (60, 200, 1000)):
        lines("decode", done, total)
    assert said == ["decode, 20 % done, about 3 min left"]


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_of_the_command(synthetic, monkeypatch, capsys, terminal):
    monkeypatch.setattr("edgekv.cli.common.progress.EVERY_SECONDS", 0.0)
    monkeypatch.setattr("edgekv.cli.common.progress.LEAST_SECONDS", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    request = QualityBench(synthetic(), **{**QUICK, "tasks": ("passkey",)})
    with progress_bar() as progress:
        rows = [row for group in run(request, progress) for row in group]
    said = capsys.readouterr().err
    assert rows and ("prose finished; passkey 700: read, " in said) == (not terminal)
    if not terminal:
        assert re.search(r"^passkey 700: sparse.*, 9\d % done, about \d+ s left$", said, re.M) and "passkey 700 finished, after " in said


# ---- the way back ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def started(synthetic):
    """A decoder that has read 300 tokens of prose, its Start, and the tokens after them."""
    with opened(synthetic(), Caches(), 2000, 1) as decoder:
        tokens = standard_text().tokens(decoder.llama, 400)
        start = Start(decoder, decoder.llama.kv.options)
        start.read(tokens[:300], [replace(find_mode("sparse"), destructive=True)], 1)
        yield decoder, start, tokens[300:]


@pytest.mark.parametrize("name", ["off", "exact", f"{SPARSE},policy=none"])
def test_snapshot_brings_back_what_was_dropped(started, name):
    """The same logits as before, whatever stood in the cells meanwhile; the sketches of the pages too. (A policy
    remembers the steps before, and what it pins is read.)"""
    decoder, start, tokens = started
    decoder.llama.kv.configure(find_mode(name).options(start.base, 300))
    decoder.decode(tokens[:1])
    snapshot = decoder.snapshot()

    def predicted() -> list[np.ndarray]:
        logits = []
        for token in tokens[1:4]:
            decoder.decode([token])
            logits.append(decoder.logits())
        return logits

    before = predicted()
    decoder.rewind(100)  # as a mode that drops cells would
    list(read(decoder, tokens[:90], 1))
    meanwhile = predicted()
    decoder.restore(snapshot)
    assert decoder.position == 301 and decoder.llama.kv.memory().n_cells_used == 301
    after = predicted()
    assert np.abs(np.subtract(before, after)).max() < 1e-3 < np.abs(np.subtract(before, meanwhile)).max()


def test_a_destructive_mode_starts_like_the_others(started):
    """Here it drops nothing, so it must predict what its twin does, and leave the cache as it was for the modes after it."""
    decoder, start, tokens = started
    twin = find_mode(SPARSE)
    modes = {"off": find_mode("off"), "exact": find_mode("exact"), "destructive": replace(twin, destructive=True), "twin": twin,
             "again": find_mode("exact-unobserved")}
    restored = []
    restore = decoder.restore
    decoder.restore = lambda snapshot: (restored.append(decoder.position), restore(snapshot))
    likeness = compare(decoder, start, modes, tokens[:40])
    assert restored == [300 + 39], "only after the mode that may have dropped cells"
    assert likeness.measured["destructive"].nll == pytest.approx(likeness.measured["twin"].nll, abs=1e-3)
    assert likeness.measured["again"].kld["exact"] == pytest.approx([0.0] * 23, abs=1e-6)
    assert len(likeness.measured["off"].nll) == 23


def test_a_mode_with_sparse_prompts_reads_the_context_itself(synthetic):
    """Once, and the modes after it start from what full attention has read."""
    with opened(synthetic("llama", n_head=6), Caches(), 4096, 2) as decoder:
        tokens = np.random.default_rng(5).integers(260, 350, 3000).tolist()
        start, told = Start(decoder, decoder.llama.kv.options), []
        reading, exact = find_mode("sparse:prompts=sparse,prompt_resolution=2"), find_mode("exact")
        assert reading.reads_itself and not exact.reads_itself and not find_mode("sparse").reads_itself
        start.read(tokens, [reading], 2, told.append)

        def read_sparsely(mode) -> bool:
            start.begin(mode)
            assert decoder.position == 3000
            decoder.decode(tokens[:1])
            return bool(decoder.kv.cells.stream().read_sparsely[:3000].any())

        assert [read_sparsely(mode) for mode in (exact, reading, reading, exact)] == [False, True, True, False]
        assert told.count(3000) == 2, "full attention and the mode, each once"


def test_questions_come_after_the_same_tokens_in_a_destructive_mode(synthetic, monkeypatch):
    """What stands before a question that is asked after the context went cold does not depend on how it got there."""
    seen = []
    monkeypatch.setattr("edgekv.bench.answers.ask", lambda decoder, *_: (seen.append(decoder.position), decoder.decode([7]), ["x"])[-1])
    with opened(synthetic(), Caches(), 3000, 1) as decoder:
        plan = Plan(decoder.llama, find_text("prose"), ("after-cold",), (700,), 1, 0)
        start, (reading,) = Start(decoder, decoder.llama.kv.options), plan.readings
        twin = find_mode(SPARSE)
        destructive = replace(twin, destructive=True)
        start.read(reading.tokens[: reading.start], [destructive], 1)
        decoded = {False: [], True: []}
        for mode in (twin, destructive):
            answers = Answers()
            plan.answer(reading, start, mode, answers, lambda position, n, mode=mode: decoded[mode.destructive].append((position, n)))
            assert [answer.said for answer in answers.given] == [("x",)] * 4
    assert seen == 2 * [1200 + 32 * i for i in range(4)]
    assert sum(n for _, n in decoded[True]) > 3 * sum(n for _, n in decoded[False])


def test_answers_are_read_gap_by_gap(synthetic, monkeypatch):
    """The token that ends a gap is not decoded, and what it holds before the end goes on."""
    with opened(synthetic(), Caches(), 500, 1) as decoder:
        script = iter("42, ok\n" + "Rome rest")
        tokenize = decoder.llama.tokenize
        decoded = []
        monkeypatch.setattr(decoder, "decode", decoded.extend)
        monkeypatch.setattr(asking.np, "argmax", lambda logits: tokenize(next(script).encode(), add_bos=False)[-1])
        monkeypatch.setattr(decoder, "logits", lambda: None)
        question = Question("age?", (Blank("is", "42"), Blank(" of", "ok")))
        assert [text.strip() for text in asking.ask(decoder, question, (), ())] == ["42", "ok"]
        assert decoder.llama.detokenize(decoded).decode().replace(" ", "").startswith("age?is42ofok")
        one_word = Question("?", (Blank("in", "Rome"),), one_word=True)
        assert asking.ask(decoder, one_word, (), ())[0].strip() == "Rome"
        short = Question("?", (Blank("in", "Rome"),), n_answer=3)
        assert asking.ask(decoder, short, (), ())[0].strip() == "res"


# ---- rows -----------------------------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr("edgekv.bench.answers.ask", scripted)
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
    monkeypatch.setattr("edgekv.bench.answers.ask", lambda decoder, question, *_: (
        decode_some(decoder), [f" {blank.expected}" for blank in question.blanks])[-1])
    deep = f"{SPARSE},exact_tokens=768"
    dropping = "evict:keep=416,split=uniform,policy=streaming"
    rows = rows_of(synthetic(), n_steps=4, tasks=("lines", "passkey"), lengths=(700, 900),
                   modes=(deep, "ema:attend=100%,exact_tokens=0", SPARSE, "evict:keep=1000", dropping))
    for row in (row for row in rows if row["mode"] == deep and row["kind"] == "task"):
        all_asked = {"lines": 8, "passkey": 1, "all": 9}[row["task"]]
        assert row["asked"] == (0 if row["length"] == 700 else all_asked)
        assert row["note"] == (None if row["length"] == 900 else "attended everything in 700 tokens: not counted")
        assert row["retention"] == (None if row["length"] == 700 else 1)
    for row in (row for row in rows if row["mode"] in ("ema:attend=100%,exact_tokens=0", "evict:keep=1000")):
        assert "attended everything" in row["note"] and row["retention"] is None and row["asked"] in (None, 0)
    for row in (row for row in rows if row["mode"] in (SPARSE, dropping, "exact", "off")):
        assert not row["note"] and (row["kind"] == "text" or row["retention"] == 1)
    assert {row["note"] for row in rows if row["kind"] == "text" and row["mode"] == deep} == {
        "attended everything: that says nothing about a sparse mode"}


def test_what_full_attention_cannot_do_says_nothing(synthetic, monkeypatch):
    monkeypatch.setattr("edgekv.bench.answers.ask", lambda decoder, question, *_: (decode_some(decoder), ["?"] * len(question.blanks))[-1])
    rows = rows_of(synthetic(), n_steps=0, tasks=("lines", "passkey"))
    assert all(row["says_nothing"] and row["retention"] is None for row in rows)
    assert [row["asked"] for row in rows] == 3 * [8] + 3 * [1] + 3 * [0]


def test_every_task_runs_on_random_weights(synthetic):
    from edgekv.bench.tasks import TASKS

    rows = rows_of(synthetic(), n_steps=0, tasks=tuple(TASKS), modes=(SPARSE,))
    assert {row["task"] for row in rows} == {*TASKS, "all"} and {row["mode"] for row in rows} == {"off", "exact", SPARSE}
    for row in rows:
        assert row["asked"] > 0 or row["task"] == "all"
        assert row["mode"] != SPARSE or row["task"] == "all" or row["kind"] == "grid" or 0 < row["attended_fraction"] < 1


def test_the_grid_of_needles(synthetic, monkeypatch):
    """One row for each fifth of the context, one column for each length; here a mode loses the second fifth of the longer one."""

    def scripted(decoder, question, lead, follow):
        lost = decoder.llama.kv.mode == "sparse" and decoder.position > 750 and int(5 * (question.depth or 0)) == 1
        decode_some(decoder)
        return ["wrong" if lost else f" {blank.expected}" for blank in question.blanks]

    monkeypatch.setattr("edgekv.bench.answers.ask", scripted)
    rows = rows_of(synthetic(), n_steps=0, tasks=("needle-grid", "passkey"), lengths=(700, 800), n_samples=2)
    cells = [row for row in rows if row["kind"] == "grid"]
    assert [(row["mode"], row["length"], row["part"]) for row in cells] == [
        (mode, length, part) for mode in ("off", "exact", SPARSE) for length in (700, 800) for part in (0.1, 0.3, 0.5, 0.7, 0.9)]
    assert all((row["asked"], row["full_found"]) == (2, 2) and row["task"] == "needle-grid" for row in cells)
    assert [row["found"] for row in cells] == 20 * [2] + 5 * [2] + [2, 0, 2, 2, 2] and cells[26]["wrong"].count("answered") == 2
    (row,) = [row for row in rows if (row["kind"], row["task"], row["mode"], row["length"]) == ("task", "needle-grid", SPARSE, None)]
    assert (row["asked"], row["kept"]) == (20, 18)
    deep = f"{SPARSE},exact_tokens=768"
    table = invoke(str(synthetic()), "--modes", f"{SPARSE},{deep}", "--text", "prose", "-n", "0", "--tasks", "needle-grid",
                   "--lengths", "700,800", "-t", "1").stdout.split("\n\n")[-1].splitlines()
    assert table[0].split() == "found of asked mode depth % at 700 at 800 note".split() and len(table) == 1 + 4 * 5
    assert table[1].split() == "needle-grid off 0-20 1/1 1/1 -".split()
    assert table[12].split() == f"needle-grid {SPARSE} 20-40 1/1 0/1 -".split()
    assert table[16].split()[:5] == f"needle-grid {deep} 0-20 - 1/1".split() and "700 tokens: not counted" in table[16]


def test_a_number_that_is_not_attended_is_not_known(default_model):
    """Whether a small model finds it with full attention says nothing about a kernel; what it does not read it cannot say."""
    _, exact, everything, streaming = rows_of(default_model, n_steps=0, tasks=("niah-single",), lengths=(320,),
                                           modes=("ema:attend=100%,exact_tokens=0", "streaming:exact_tokens=0"))
    assert exact["asked"] == 1 and exact["kept"] == exact["full_found"]
    assert everything["attended_fraction"] == 1 and everything["asked"] == 0 and "attended everything in 320" in everything["note"]
    assert streaming["found"] == 0 and streaming["attended_fraction"] < 0.5
    assert streaming["wrong"].count("answered") == exact["full_found"], "only what full attention finds counts as lost"


# ---- what is refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "sentence"), [
    ({"modes": ("fish",)}, "there is no bench mode"), ({"modes": ("off-noflash",)}, "cannot take turns"),
    ({"tasks": ("fish",)}, "there is no task 'fish'; choose one of: passkey"), ({"n_steps": 0}, "nothing to measure"),
    ({"lengths": (100,)}, "256 tokens or more"), ({"depth": 10}, "256 tokens or more"), ({"texts": ()}, "no text"),
    ({"n_samples": 0}, "1 or more")])
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


def test_models_that_cannot_be_rewound(synthetic):
    with pytest.raises(EdgeKVError, match="recurrent"):
        rows_of(synthetic("lfm2"))


def test_no_memory(synthetic, monkeypatch):
    monkeypatch.setattr(Caches, "does_not_fit", lambda *_: "does not fit: it needs 9 GiB and 1 GiB are free")
    with pytest.raises(DoesNotFit, match="needs 9 GiB.*smaller -d"):
        rows_of(synthetic())


# ---- the command ------------------------------------------------------------------------------------------------------------------


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
    assert head.startswith(cpu_family()) and all(row["cpu"] == cpu_family() and row["date"] for row in rows)
    assert first.split()[:3] == ["text", "mode", "depth"] and len(first.splitlines()) == 4
    assert second.split()[:3] == ["task", "mode", "asked"] and len(second.splitlines()) == 10 and "says nothing" in second
    assert "note" not in first.splitlines()[0]
    parsed = list(csv.DictReader(io.StringIO(invoke(*arguments[:-6], "--tasks", "none", "-t", "1", "-o", "csv").stdout)))
    assert len(parsed) == 3 and parsed[2]["mode"] == SPARSE


def test_options_that_make_a_mode(synthetic):
    assert _own_mode({"policy": None, "attend": None}) == ()
    (name,) = _own_mode({"policy": "ema+anchor", "attend": "20%"})
    assert name == "sparse:exact_tokens=0,sketch=none,policy=ema+anchor,attend=20%"
    (smaller,) = _own_mode({"policy": None, "attend": "20%"})
    assert smaller == "sparse:exact_tokens=0,sketch=none,attend=20%"
    for mode in (name, smaller):
        assert find_mode(mode).changes["exact_tokens"] == 0
    common = (str(synthetic()), "--text", "prose", "-d", "300", "-n", "2", "--tasks", "none", "-t", "1", "-o", "json")
    rows = json.loads(invoke(*common, "--policy", "ema+anchor", "--budget", "20%").stdout)
    assert [row["mode"] for row in rows] == ["off", "exact", name]
    assert isinstance(invoke(*common, "--policy", "fish").exception, ConfigError)
    assert isinstance(invoke(*common, "--tasks", "fish").exception, ConfigError)
    assert "'fish'" in str(invoke(*common, "--tasks", "default,fish").exception)
    assert invoke(*common, "--lengths", "many").exit_code == 2


def test_help_names_every_task():
    from edgekv.bench.tasks import TASKS

    words = set(invoke("--help").stdout.replace(",", " ").replace(".", " ").replace("-\n", "-").split())
    text = " ".join(invoke("--help").stdout.split()).replace("- ", "-")
    assert all(name in words or name in text for name in TASKS)
