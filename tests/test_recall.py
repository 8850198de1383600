"""`edgekv bench recall`: facts from a context that went cold."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from edgekv.bench.facts import SUBJECTS, Fact
from edgekv.bench.recall import MARKS, RecallBench, plant, run
from edgekv.bench.text import Text, find_text
from edgekv.cli.bench import bench as command
from edgekv.errors import ConfigError
from edgekv.llama import Llama
from edgekv.machine import cpu_family

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


def test_full_attention_finds_facts(default_model):
    """And so does mode sparse where its budget is everything; a mode that keeps the newest tokens only has lost them."""
    modes = ("exact", "sparse:attend=100%,min_tokens=0", "streaming:min_tokens=0")
    (rows,) = run(RecallBench(default_model, find_text("prose"), modes=modes, **QUICK))
    off, exact, everything, streaming = rows
    assert [row["mode"] for row in rows] == ["off", *modes] and {row["asked"] for row in rows} == {2}
    assert exact["found"] == 2 and exact["kept"] == exact["full_found"] == exact["found"]
    assert everything["kept"] == exact["found"] and everything["attended_fraction"] == 1
    assert streaming["found"] == 0 and streaming["attended_fraction"] < 0.3 and streaming["wrong"].count("answered") == 2
    assert set("".join(row["marks"] for row in rows)) <= set(MARKS.values()) and off["decode_ms_p50"] > 0
    assert all(row["note"] is None for row in rows)


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
    assert head.startswith(cpu_family()) and empty == "" and rows[0]["cpu"] == cpu_family() and rows[0]["date"]
    assert table[0].split()[:4] == ["mode", "depth", "asked", "found"] and len(table) == 3
