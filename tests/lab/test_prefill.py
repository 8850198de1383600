"""`edgekv bench kv --prefill`: how fast prompts are read. No speed is asserted."""

from __future__ import annotations

import csv
import io
import json

import pytest
from click.testing import CliRunner

from edgekv.cli.bench import bench as command
from edgekv.errors import ConfigError
from edgekv.lab.engine.passes import Caches
from edgekv.lab.questions import prefill
from edgekv.lab.questions.prefill import FIGURES, PrefillBench
from edgekv.lab.texts.text import Text, standard_text
from edgekv.machine import cpu_family
from edgekv.rates.measuring.decoder import Decoder
from edgekv.vocab import CacheType, KvMode

MODES = ["off", "off-flash", "off-noflash", "exact"]


def run(path, **settings) -> list[dict]:
    settings = {"depths": (128,), "n_rounds": 2, "n_chunk": 32, "texts": (standard_text(),), "modes": ("off", "exact"), **settings}
    return [row for group in prefill.run(PrefillBench(path, **settings)) for row in group]


def test_rows(synthetic):
    rows = run(synthetic(), depths=(300, 128), threads=(2, 1), modes=("exact", "sparse"), n_whole=100)
    places = [(0, 32, "prefill"), (128, 32, "prefill"), (300, 32, "prefill"), (0, 100, "prompt")]
    assert [(row["threads"], row["depth"], row["n_tokens"], row["kind"], row["mode"]) for row in rows] == [
        (threads, *place, mode) for threads in (2, 1) for place in places for mode in (*MODES, "sparse")]
    for row in rows:
        assert row["note"] is None and row["cpu"] == cpu_family() and row["n_chunk"] == 32 and row["n_rounds"] == 2
        assert 0 < row["ms_min"] <= row["ms_p50"] <= row["ms_max"]
        assert row["tokens_per_second"] == pytest.approx(1000 * row["n_tokens"] / row["ms_p50"])
        assert (row["attention_fraction"] is None) == (row["pair_ns"] is None) == (row["depth"] == 0)
    for off, flash, noflash, exact, _ in (rows[i : i + 5] for i in range(0, len(rows), 5)):
        best = min((flash, noflash), key=lambda row: row["ms_p50"])
        assert {row["stock"] for row in (off, flash, noflash, exact)} == {best["mode"]} and off["ms_p50"] == best["ms_p50"]
        assert exact["ratio_vs_stock"] == best["ms_p50"] / exact["ms_p50"]


@pytest.fixture
def clock(monkeypatch):
    """Reading takes what it is made to: 1 ms a token and, for each token before it, `us` microseconds; `seen` has each batch."""
    seen, us = [], {"off-flash": 2.0, "off-noflash": 1.0, "exact": 0.25}
    decode = Decoder.decode

    def timed(self, tokens):
        name = "off-noflash" if self.kv is None else "off-flash" if self.kv.mode is KvMode.OFF else "exact"
        seen.append((name, self.position, len(tokens)))
        position = self.position
        decode(self, tokens)
        return len(tokens) * (1e-3 + 1e-6 * us[name] * position)

    monkeypatch.setattr(Decoder, "decode", timed)
    return seen


def test_what_is_measured(synthetic, clock):
    """The share of attention is what the depth adds; a pair is a query, a key and a query head of a served layer: 2 layers of 4 heads."""
    rows = {(row["depth"], row["mode"]): row for row in run(synthetic(), depths=(1000,), threads=(2,))}
    assert rows[0, "exact"]["ms_p50"] == pytest.approx(32) and rows[0, "off"]["tokens_per_second"] == pytest.approx(1000)
    for mode, ms in (("off-flash", 3.0), ("off-noflash", 2.0), ("exact", 1.25), ("off", 2.0)):
        row = rows[1000, mode]
        assert row["ms_p50"] == pytest.approx(32 * ms) and row["attention_fraction"] == pytest.approx(1 - 1 / ms)
        assert row["pair_ns"] == pytest.approx(1e6 * 2 * (ms - 1) / (1000 * 2 * 4)), "nanoseconds of two threads"
        assert row["stock"] == "off-noflash" and row["ratio_vs_stock"] == pytest.approx(2 / ms)


def test_turns(synthetic, clock):
    """Each turn of a mode reads the chunk behind the depth and into an empty cache, after a token that takes the change of mode; the
    depths are read in once, with full attention."""
    run(synthetic(), depths=(64, 128), threads=(2, 1), n_rounds=2)
    for name in ("off-flash", "off-noflash", "exact"):
        for depth, n_times in ((64, 4), (128, 4)):
            assert clock.count((name, depth, 32)) == n_times + (depth == 64 and name in ("exact", "off-noflash"))  # once to fill
        assert clock.count((name, 0, 1)) >= 8
    filled = [seen for seen in clock if seen[1] in (32, 96)]
    assert filled == [("exact", 32, 32), ("off-noflash", 32, 32), ("exact", 96, 32), ("off-noflash", 96, 32)]
    order = [name for name, position, n in clock if position == 128 and n == 32]
    assert order[:6] == ["off-flash", "off-noflash", "exact", "off-noflash", "exact", "off-flash"]


def test_what_cannot_be_had_is_said(synthetic):
    off, flash, noflash, exact = run(synthetic(), cache_types=((CacheType.Q8_0, CacheType.Q8_0),))[4:]
    assert noflash["note"] == "llama.cpp needs flash attention for a q8_0 V cache" and noflash["ms_p50"] is None
    assert "off-noflash is missing" in off["note"] and exact["note"] is None and exact["ratio_vs_stock"] and exact["stock"] == "off-flash"
    rows = run(synthetic(), modes=("off-noflash",), cache_types=((CacheType.F16, CacheType.Q8_0),))
    assert all(row["ms_p50"] is None and "needs flash attention" in row["note"] for row in rows)
    rows = run(synthetic(), depths=(64, 10**12), n_whole=10**12)
    assert [(row["depth"], row["ms_p50"] is None) for row in rows[::4]] == [(0, False), (64, False), (10**12, True), (0, True)]
    assert all(row["note"].startswith("does not fit") for row in rows[8:])
    rows = run(synthetic(), texts=(Text("short", "hello " * 50),), depths=(1000,))
    assert rows[0]["note"] is None and rows[0]["ms_p50"] and "give a longer one" in rows[4]["note"], "the empty cache can be measured"
    assert "1 of 2 layers run stock" in run(synthetic("gemma2"))[4]["note"]


def test_no_memory_for_a_second_context(synthetic, monkeypatch):
    asked = []

    def does_not_fit(*_) -> str | None:
        asked.append(None)
        return "does not fit: it needs 9 GiB" if len(asked) > 2 else None

    monkeypatch.setattr(Caches, "does_not_fit", does_not_fit)
    assert run(synthetic())[6]["note"] == "a second context does not fit: it needs 9 GiB"


def test_beyond_the_trained_context(synthetic):
    warnings = []
    bench = PrefillBench(synthetic(n_ctx_train=128), (standard_text(),), (120,), n_chunk=16, n_rounds=1)
    list(prefill.run(bench, warn=warnings.append))
    assert "trained for 128 tokens" in warnings[0]


def test_bad_requests(synthetic):
    for settings, sentence in (({"modes": ("fish",)}, "choose one of: off, "),
                               ({"modes": ("evict:keep=64",)}, "drops what the modes after"),
                               ({"depths": (0,)}, "depth must be 1 or more"), ({"n_chunk": 1}, "must have 2 tokens or more"),
                               ({"n_rounds": 0}, "number of rounds must be"), ({"n_whole": -1}, "whole prompt must be 1 or more")):
        with pytest.raises(ConfigError, match=sentence):
            PrefillBench(synthetic(), (), **settings)


def invoke(*arguments: str):
    return CliRunner().invoke(command, ["kv", *arguments])


def test_command(synthetic, tmp_path):
    text = tmp_path / "own.txt"
    text.write_text("The cat sat on the mat. " * 60)
    common = (str(synthetic()), "--prefill", "-d", "64", "-r", "1", "--text", str(text), "--ubatch", "16", "--whole", "80",
              "--modes", "off,exact")
    result = invoke(*common, "-o", "json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["kind"] for row in rows] == ["prefill"] * 8 + ["prompt"] * 4 and all(set(FIGURES) <= set(row) for row in rows)
    assert [row["n_tokens"] for row in rows[::4]] == [16, 16, 80]
    assert len(list(csv.DictReader(io.StringIO(invoke(*common, "-o", "csv").stdout)))) == 12
    head, empty, *tables = invoke(*common).stdout.splitlines()
    assert head.startswith(cpu_family()) and empty == ""
    assert tables[0].split() == "depth mode threads tokens/s ms/chunk [min, max] x stock best stock attention % ns/pair".split()
    chunks, whole = tables[:9], tables[10:]
    assert tables[9] == "" and [line.split()[0] for line in chunks[1:]] == ["0"] * 4 + ["64"] * 4
    assert whole[0].split()[0] == "prompt" and [line.split()[0] for line in whole[1:]] == ["80"] * 4
    markdown = invoke(*common, "-o", "md").stdout.splitlines()
    assert markdown[2].startswith("| depth | mode |") and any(line.startswith("| prompt | mode |") for line in markdown)


@pytest.mark.parametrize(("arguments", "said"), [
    (("--ubatch", "64"), "--ubatch belongs to --prefill; name that too"), (("--whole", "64"), "--whole belongs to --prefill"),
    (("--prefill", "--steps", "8"), "--steps says how tokens are decoded, and --prefill decodes none"),
    (("--prefill", "--warmup", "8"), "--warmup says how"), (("--prefill", "--ubatch", "1"), "1 is not in the range"),
    (("--prefill", "--whole", "0"), "0 is not in the range"), (("--prefill", "-d", "0"), "0 is not in the range")])
def test_command_refuses(synthetic, arguments, said):
    result = invoke(str(synthetic()), *arguments)
    assert result.exit_code == 2 and said in result.output
