"""`edgekv bench recall`: facts from a context that went cold."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from edgekv.bench.facts import SUBJECTS, Fact
from edgekv.bench.passes import Caches, opened
from edgekv.bench.recall import MARKS, RecallBench, ask, plant, run
from edgekv.bench.text import Text, find_text
from edgekv.cli.bench import bench as command
from edgekv.errors import ConfigError
from edgekv.llama import Llama
from edgekv.machine import cpu_family
from edgekv.vocab import KvMode

QUICK = {"depths": (500,), "n_questions": 2, "n_cold": 32}


def test_facts():
    fact = Fact("code of the door", "4711")
    assert fact.sentence == "The code of the door is 4711." and fact.question.endswith("The code of the door is")
    assert fact.answered_by(" 4711.\n\nQuestion 5") and fact.answered_by("...4711")
    assert not any(fact.answered_by(wrong) for wrong in (" 47112", " 12 or 4711", "unknown", ""))


def test_contexts(synthetic):
    request = RecallBench(synthetic(), find_text("prose"))
    contexts = request.contexts()
    assert sorted(fact.subject for facts in contexts for fact in facts) == sorted(SUBJECTS)
    assert {len(facts) for facts in contexts} == {4}
    assert contexts == request.contexts() != RecallBench(synthetic(), find_text("prose"), seed=1).contexts()
    few = RecallBench(synthetic(), find_text("prose"), n_questions=5, n_facts=2)
    assert [len(facts) for facts in few.contexts()] == [2, 2, 1]


def test_facts_are_planted_where_they_are_said_to_be(synthetic):
    llama = Llama(str(synthetic()), n_ctx=64, verbose=False)
    facts = [Fact("one", "1111"), Fact("two", "2222")]
    early, late = (plant(llama, find_text("prose"), facts, 8000, 300, turn, 2) for turn in range(2))
    for haystack in (early, late):
        assert len(haystack.tokens) == 8300
        for fact, position in zip(facts, haystack.positions):
            assert fact.sentence in llama.detokenize(haystack.tokens[position : position + 60]).decode()
    assert early.positions[0] < late.positions[0] < early.positions[1] < late.positions[1] < 8000
    with pytest.raises(ConfigError, match="too little text"):
        plant(llama, Text("short", "one\n\ntwo"), facts, 2000, 300, 0, 1)
    llama.close()


def test_a_fact_that_is_not_attended_is_not_known(default_model):
    """A number of four digits that a mode does not read it cannot say, whatever the model. Whether a small model finds it with full
    attention says nothing about a kernel; that sparse attends the same where it reads everything is what test_sparse.py is for."""
    modes = ("exact", "sparse:resolution=1e9,exact_tokens=0", "streaming:exact_tokens=0")
    (rows,) = run(RecallBench(default_model, find_text("prose"), modes=modes, **QUICK))
    off, exact, everything, streaming = rows
    assert [row["mode"] for row in rows] == ["off", *modes] and {row["asked"] for row in rows} == {2}
    assert streaming["found"] == 0 and streaming["attended_fraction"] < 0.3 and streaming["wrong"].count("answered") == 2
    assert exact["attended_fraction"] == 1 and everything["attended_fraction"] > 0.99
    for row in rows:
        assert row["found"] + row["wrong"].count("answered") == row["asked"] and row["full_found"] == exact["found"]
        assert set(row["marks"]) <= set(MARKS.values()) and row["decode_ms_p50"] > 0 and row["note"] is None
        assert row["cpu"] == cpu_family() and row["date"]


def test_what_is_found_is_counted(synthetic, monkeypatch):
    """Answers are scripted by mode; each is asked with the same tokens before it, at the same positions."""
    said = {KvMode.OFF: "1111", KvMode.EXACT: None, KvMode.SPARSE: None}  # None: what is right
    seen: dict[str, list[int]] = {}

    def scripted(decoder, fact):
        mode, n = decoder.llama.kv.mode, len(seen.setdefault(str(decoder.llama.kv.options), []))
        seen[str(decoder.llama.kv.options)].append(decoder.position)
        lost = mode is KvMode.SPARSE and n == 1 or mode is KvMode.EXACT and n == 2
        return " I do not know." if lost else f" {said[mode] or fact.value}."

    monkeypatch.setattr("edgekv.bench.recall.ask", scripted)
    request = RecallBench(synthetic(), find_text("prose"), depths=(3000,), modes=("exact", "sparse:resolution=500,exact_tokens=0"),
                          n_questions=3, n_facts=3, n_cold=32)
    (rows,) = run(request)
    off, exact, sparse = rows
    assert [(row["asked"], row["found"], row["full_found"], row["kept"]) for row in rows] == [(3, 0, 2, 0), (3, 2, 2, 2), (3, 2, 2, 1)]
    assert [row["marks"] for row in rows] == ["--x", "++x", "+-*"]
    assert off["wrong"].count("answered '1111.'") == 3 and sparse["wrong"].count("answered 'I do not know.'") == 1
    facts = request.contexts()[0]
    assert facts[1].subject in sparse["wrong"] and facts[2].subject in exact["wrong"]
    assert list(seen.values()) == [[3000 + 32 + 32 * i for i in range(3)]] * 3


def test_the_answer_is_what_the_model_says_next(synthetic):
    """Greedy, by a plain loop of its own over the same tokens."""
    fact = Fact("one", "1111")
    with opened(synthetic(dtype="f32"), Caches(), 512, 1) as decoder:
        question = decoder.llama.tokenize(fact.question.encode(), add_bos=False)
        decoder.decode(list(range(260, 340)))
        answer = ask(decoder, fact)
        assert decoder.position == 80 + len(question) + 8
        decoder.rewind(80)
        expected = list(question)
        for _ in range(8):
            decoder.rewind(80)
            for token in expected:
                decoder.decode([token])
            expected.append(int(decoder.logits().argmax()))
        assert answer == decoder.llama.detokenize(expected[len(question):]).decode(errors="replace")


def test_what_does_not_fit_is_a_row(synthetic):
    (rows,) = run(RecallBench(synthetic(), find_text("prose"), **{**QUICK, "depths": (10**12,)}))
    assert all(row["note"].startswith("does not fit") and row["asked"] == 0 for row in rows)


def test_bad_requests(synthetic):
    for settings in ({"n_questions": 17}, {"depths": ()}, {"depths": (100,)}, {"n_cold": 3}, {"n_facts": 0},
                     {"modes": ("off-noflash",)}, {"modes": ("evict",)}, {"modes": ("sparse:mode=evict",)}):
        with pytest.raises(ConfigError):
            RecallBench(synthetic(), find_text("prose"), **settings)


def test_command(synthetic):
    arguments = ["recall", str(synthetic()), "-d", "4000", "-q", "2", "--cold", "16", "--modes", "exact"]
    rows = json.loads(CliRunner().invoke(command, [*arguments, "-o", "json"]).stdout)
    assert [row["mode"] for row in rows] == ["off", "exact"] and rows[0]["asked"] == 2
    head, empty, *table = CliRunner().invoke(command, arguments).stdout.splitlines()
    assert head.startswith(cpu_family()) and empty == ""
    assert table[0].split()[:4] == ["mode", "depth", "asked", "found"] and len(table) == 3
