"""`edgekv bench kv`: its arithmetic and its rows. No speed is asserted."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner

from edgekv.bench import kv
from edgekv.bench.kv import BLOCK_TOKENS, KvBench
from edgekv.bench.measured import Measured, log_softmax
from edgekv.bench.modes import MODES
from edgekv.bench.text import Text, read_text, standard_text
from edgekv.cli.bench import bench as command
from edgekv.errors import ConfigError, EdgeKVError
from edgekv.vocab import CacheType

KEYS = {
    "mode", "depth", "threads", "decode_ms_p50", "decode_ms_p10", "decode_ms_p90", "ratio_vs_stock", "prefill_tps", "nll",
    "kld_mean", "same_top", "hit_rate", "coverage", "attended_fraction", "arena_bytes", "overhead_fraction", "type_k", "type_v",
    "text", "n_steps", "model", "isa", "version",
}


def run(path, **settings) -> list[dict]:
    settings = {"depths": (40,), "n_steps": 12, "texts": (standard_text(),), "modes": ("off", "exact"), **settings}
    return [row for group in kv.run(KvBench(path, **settings)) for row in group]


def test_rows(synthetic):
    rows = run(synthetic(), depths=(200, 40), modes=("exact", "exact-unobserved"),
               cache_types=((CacheType.F16, CacheType.F16), (CacheType.Q8_0, CacheType.Q8_0)))
    assert [row["mode"] for row in rows] == ["off", "exact", "exact-unobserved"] * 4
    assert all(KEYS <= set(row) and row["note"] is None for row in rows)
    assert [(row["type_k"], row["depth"]) for row in rows[::3]] == [("f16", 40), ("f16", 200), ("q8_0", 40), ("q8_0", 200)]
    for off, exact, unobserved in zip(rows[::3], rows[1::3], rows[2::3]):
        assert off["ratio_vs_stock"] == 1 and {off[key] for key in ("kld_mean", "same_top", "overhead_fraction")} == {None}
        assert exact["ratio_vs_stock"] == off["decode_ms_p50"] / exact["decode_ms_p50"]
        assert exact["attended_fraction"] == 1 and exact["arena_bytes"] is None and isinstance(exact["overhead_fraction"], float)
        for row in (exact, unobserved):
            assert 0 < row["decode_ms_p10"] <= row["decode_ms_p50"] <= row["decode_ms_p90"] and row["prefill_tps"] > 0
            assert -1e-9 < row["kld_mean"] < 1e-2 and row["same_top"] > 0.8 and row["nll"] == pytest.approx(off["nll"], abs=0.1)


def test_threads_repeat_the_depths(synthetic):
    rows = run(synthetic(), depths=(20, 30), threads=(2, 1), n_steps=2)
    assert [(row["threads"], row["depth"]) for row in rows[::2]] == [(2, 20), (2, 30), (1, 20), (1, 30)]
    assert rows[0]["nll"] == pytest.approx(rows[4]["nll"], abs=0.05)


def test_two_stock_kernels_are_the_measure(synthetic):
    """Exact is as close to stock as stock without flash attention is, which has predictions and no times."""
    off, noflash, exact = run(synthetic(), depths=(100, 300), modes=("off-noflash", "exact"), n_steps=32)[3:]
    assert noflash["decode_ms_p50"] is None and noflash["ratio_vs_stock"] is None and noflash["note"] is None
    assert 0 < exact["kld_mean"] < 5 * noflash["kld_mean"] + 1e-6
    off, noflash, exact = run(synthetic(), modes=("off-noflash", "exact"), cache_types=((CacheType.Q8_0, CacheType.Q8_0),))
    assert "needs flash attention" in noflash["note"] and noflash["kld_mean"] is None and exact["kld_mean"] is not None


def test_likelihood_is_that_of_the_text(synthetic):
    """The reported NLL is what a plain pass over the same tokens gives."""
    import llama_cpp

    from edgekv.llama import Llama

    off = run(synthetic(), n_steps=BLOCK_TOKENS, prefill=False)[0]
    assert off["prefill_tps"] is None
    llama = Llama(str(synthetic()), kv="off", n_ctx=256, n_threads=1, verbose=False)
    tokens = llama.tokenize(standard_text().content[:500].encode())
    llama.eval(tokens[:40])
    nll = []
    for position in range(40, 40 + BLOCK_TOKENS + 1):
        llama.eval([tokens[position]])
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llama.ctx, -1), (llama.n_vocab(),))
        nll.append(-log_softmax(logits)[tokens[position + 1]])
    llama.close()
    assert off["nll"] == pytest.approx(float(np.mean(nll)), abs=0.02)


def test_log_softmax_of_extremes():
    assert log_softmax(np.array([1000.0, 0.0], np.float32)) == pytest.approx([0.0, -1000.0])


def test_every_mode_gets_every_turn():
    assert [kv._rotated(("a", "b"), turn) for turn in range(3)] == [("a", "b"), ("b", "a"), ("a", "b")]


@pytest.mark.parametrize("n_steps", [1, 8, 9, 16, 17])
def test_number_of_timed_steps(synthetic, monkeypatch, n_steps):
    counted = []
    figures = Measured.figures

    def counting(self, *rest):
        counted.append(len(self.milliseconds))
        return figures(self, *rest)

    monkeypatch.setattr(Measured, "figures", counting)
    run(synthetic(), n_steps=n_steps, prefill=False)
    assert counted == [n_steps, n_steps]


def test_what_does_not_fit_is_a_row(synthetic):
    rows = run(synthetic(), depths=(40, 10**12))
    assert [row["note"] is None for row in rows] == [False, False, True, True]
    assert rows[0]["note"].startswith("does not fit") and rows[0]["depth"] == 10**12 and rows[0]["decode_ms_p50"] is None


def test_short_text_is_a_row(synthetic):
    rows = run(synthetic(), texts=(Text("short", "hello"), standard_text()))
    assert "only 6 tokens" in rows[0]["note"] and [row["note"] for row in rows[2:]] == [None, None]


def test_beyond_the_trained_context(synthetic):
    warnings = []
    path = synthetic(n_ctx_train=128)
    (rows,) = kv.run(KvBench(path, (standard_text(),), (300,), n_steps=4, modes=("exact",)), warn=warnings.append)
    assert "trained for 128 tokens" in warnings[0] and rows[1]["decode_ms_p50"] > 0


def test_partly_hooked_models_say_so(synthetic):
    assert "1 of 2 layers run stock" in run(synthetic("gemma2"))[1]["note"]


def test_recurrent_models_are_refused(synthetic):
    with pytest.raises(EdgeKVError, match="recurrent"):
        run(synthetic("lfm2"))


def test_bad_requests(synthetic, tmp_path):
    with pytest.raises(ConfigError, match="choose one of: off, "):
        KvBench(synthetic(), (), modes=("fish",))
    with pytest.raises(ConfigError, match="depth must be 1 or more"):
        KvBench(synthetic(), (), depths=())
    with pytest.raises(ConfigError, match="cannot be read"):
        read_text(tmp_path / "missing.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_text(tmp_path / "binary")


def test_help_names_every_mode():
    words = invoke("--help").stdout.replace("-\n", "-").replace(",", " ").replace(";", " ").split()
    assert set(MODES) <= set(words)


def test_standard_text_is_long():
    assert len(standard_text().content) > 400_000


def invoke(*arguments: str):
    return CliRunner().invoke(command, ["kv", *arguments])


def test_command(synthetic, tmp_path):
    text = tmp_path / "own.txt"
    text.write_text("The cat sat on the mat. " * 40)
    common = (str(synthetic()), "-d", "64,128", "-n", "4", "--text", str(text), "--type-k", "f16,q8_0", "--modes", "off,exact")
    result = invoke(*common, "-o", "json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert len(rows) == 8 and all(KEYS <= set(row) and row["text"] == "own.txt" for row in rows)
    assert {(row["type_k"], row["type_v"]) for row in rows} == {("f16", "f16"), ("q8_0", "f16")}
    rows = list(csv.DictReader(io.StringIO(invoke(*common, "-o", "csv", "--no-prefill").stdout)))
    assert len(rows) == 8 and rows[0]["prefill_tps"] == ""
    table = invoke(*common).stdout.splitlines()
    assert table[0].split()[:3] == ["mode", "depth", "threads"] and len(table) == 9


def test_command_refuses(synthetic):
    path = str(synthetic())
    assert invoke(path, "-d", "0").exit_code == 2
    assert invoke(path, "-d", "many").exit_code == 2
    assert invoke(path, "--type-k", "f16,q8_0,f16", "--type-v", "f16,q8_0").exit_code == 2
    assert invoke(path, "--type-k", "q2_k").exit_code == 2
    assert isinstance(invoke(path, "--modes", "fish").exception, ConfigError)
