"""`edgekv bench kv`: its modes, its texts, its arithmetic and its rows. No speed is asserted."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from edgekv.assignments import split_modes
from edgekv.cli.bench import bench as command
from edgekv.config import KvOptions
from edgekv.errors import ConfigError, EdgeKVError
from edgekv.lab.engine.modes import MODES, find_mode, in_order, rotated
from edgekv.lab.engine.passes import Caches, opened, read, weights_alone
from edgekv.lab.engine.tally import Tally, log_softmax
from edgekv.lab.questions import kv
from edgekv.lab.questions.kv import KvBench
from edgekv.lab.texts.text import TEXTS, Text, find_text, read_text, standard_text
from edgekv.machine import cpu_family
from edgekv.rates.measuring.contexts import beside
from edgekv.rates.measuring.decoder import Decoder
from edgekv.vocab import CacheType, KvMode, SketchKind

KEYS = {
    "mode", "depth", "threads", "decode_ms_p50", "decode_ms_p10", "decode_ms_p90", "ratio_vs_stock", "growth_fraction",
    "nll", "nll_vs_stock", "nll_vs_exact", "kld_stock", "kld_exact", "same_top_stock", "same_top_exact",
    "hit_rate", "hit_rate_mass", "coverage", "error", "attended_fraction", "rows_per_head", "moved_bytes_per_step", "sketch_bytes", "arena_bytes",
    "overhead_fraction", "type_k", "type_v", "text", "n_steps", "n_rounds", "model", "isa", "version", "kind", "stock",
    "limit_ms_p50", "ratio_vs_limit", "cpu", "cores", "date",
}
STOCKS = ["off", "off-flash", "off-noflash"]


def run(path, **settings) -> list[dict]:
    settings = {"depths": (40,), "n_steps": 12, "n_rounds": 2, "texts": (standard_text(),), "modes": ("off", "exact"), **settings}
    return [row for group in kv.run(KvBench(path, **settings)) for row in group]


def test_rows(synthetic):
    rows = run(synthetic(), depths=(200, 40), modes=("exact", "exact-unobserved"),
               cache_types=((CacheType.F16, CacheType.F16), (CacheType.Q8_0, CacheType.F16)))
    assert [row["mode"] for row in rows] == [*STOCKS, "exact", "exact-unobserved"] * 4
    assert all(KEYS <= set(row) and row["note"] is None and row["kind"] == "kv" for row in rows)
    assert [(row["type_k"], row["depth"]) for row in rows[::5]] == [("f16", 40), ("f16", 200), ("q8_0", 40), ("q8_0", 200)]
    for off, flash, noflash, exact, unobserved in zip(*(rows[i::5] for i in range(5))):
        best = flash if flash["decode_ms_p50"] <= noflash["decode_ms_p50"] else noflash
        assert off["ratio_vs_stock"] == 1 == best["ratio_vs_stock"] and off["overhead_fraction"] is None
        assert {flash[key] for key in ("kld_stock", "same_top_stock", "overhead_fraction")} == {None}
        assert exact["attended_fraction"] == exact["coverage"] == 1 and exact["error"] == 0 and exact["arena_bytes"] is None
        assert isinstance(exact["overhead_fraction"], float)
        assert exact["kld_exact"] is None and flash["kld_exact"] > -1e-9 and noflash["kld_stock"] > -1e-9
        assert unobserved["kld_exact"] == 0 == unobserved["nll_vs_exact"], "passes begin alike: the same kernel says the same"
        for row in (noflash, exact, unobserved):
            assert 0 < row["decode_ms_p10"] <= row["decode_ms_p50"] <= row["decode_ms_p90"]
            assert row["kld_stock"] > -1e-9 and 0 <= row["same_top_stock"] <= 1
            assert row["nll"] == pytest.approx(flash["nll"] * (1 + row["nll_vs_stock"]))
    assert {row["growth_fraction"] for row in rows if row["depth"] == 40} == {0}


def test_ratios_are_to_the_faster_of_stocks_kernels(synthetic):
    """Both are measured and shown, and each row says which one its ratio is to."""
    for off, flash, noflash, exact in _by_depth(run(synthetic(), depths=(40, 300))):
        best = min((flash, noflash), key=lambda row: row["decode_ms_p50"])
        assert {row["stock"] for row in (off, flash, noflash, exact)} == {best["mode"]}
        for row in (flash, noflash, exact):
            assert row["ratio_vs_stock"] == best["decode_ms_p50"] / row["decode_ms_p50"]
        same = ("decode_ms_p50", "decode_ms_p90", "nll", "kld_exact", "ratio_vs_stock", "ratio_vs_limit")
        assert [off[key] for key in same] == [best[key] for key in same]


@pytest.mark.parametrize("slower", ["off-flash", "off-noflash"])
def test_whichever_kernel_is_faster_is_stock(synthetic, monkeypatch, slower):
    figures = Tally.time

    def slowed(self, seconds, stats, selection):
        figures(self, [value + (10 if names.pop(0) == slower else 1) for value in seconds], stats, selection)

    monkeypatch.setattr(Tally, "time", slowed)
    names = ["off-flash"] * 4 + ["exact"] * 4 + ["off-noflash"] * 4  # the order of turns; references first
    rows = {row["mode"]: row for row in run(synthetic(), n_steps=4, n_rounds=1)}
    faster = ({"off-flash", "off-noflash"} - {slower}).pop()
    assert {row["stock"] for row in rows.values()} == {faster} and not names
    assert rows["off"]["decode_ms_p50"] == rows[faster]["decode_ms_p50"] < 2000 and rows[slower]["ratio_vs_stock"] < 0.2
    assert rows["exact"]["ratio_vs_stock"] == pytest.approx(1, abs=0.2)


def test_every_row_says_how_far_above_the_weights_alone_it_is(synthetic, monkeypatch):
    emptied = []
    rewind = Decoder.rewind

    def watched(self, position):
        emptied.append((position, self.kv is None))
        rewind(self, position)

    monkeypatch.setattr(Decoder, "rewind", watched)
    rows = run(synthetic(), depths=(40, 300), n_steps=6, n_rounds=2)
    assert emptied.count((0, True)) >= 2 * 2 * 6, "a step of the limit begins with an empty cache, in a context of its own"
    for row in rows:
        assert row["limit_ms_p50"] > 0 and row["ratio_vs_limit"] == row["decode_ms_p50"] / row["limit_ms_p50"]
    assert len({row["limit_ms_p50"] for row in rows}) == 2, "one for each depth, in turns with the modes"


def test_a_limit_that_cannot_be_had_is_said(synthetic, monkeypatch):
    """The small context is not worth losing the others for, on a card whose memory is taken."""
    beside = Decoder.beside

    def refuse(self, n_ctx, *how):
        if n_ctx == 256:
            raise EdgeKVError("no room")
        return beside(self, n_ctx, *how)

    monkeypatch.setattr(Decoder, "beside", refuse)
    off, *others = run(synthetic(), depths=(500,))
    assert off["note"] == "limit is missing: does not fit: no room" and all(row["note"] is None for row in others)
    assert all(row["limit_ms_p50"] is None is row["ratio_vs_limit"] and row["ratio_vs_stock"] for row in (off, *others))


def test_the_limit_does_not_know_the_depth(synthetic):
    """`weights_alone` decodes each token with nothing before it: the logits are those of a context that has seen it alone."""
    with opened(synthetic(), Caches(), 512, 1) as decoder, beside(decoder, 256) as limit:
        list(read(decoder, list(range(260, 350)) * 4, 1))
        assert len(weights_alone(limit, [270, 280, 290])) == 2 and limit.position == 1 and decoder.position == 360
        found = limit.logits()
        decoder.rewind(0)
        decoder.decode([290])
        assert np.array_equal(found, decoder.logits())


def test_two_stock_kernels_are_the_measure(synthetic):
    """How far apart correct kernels are follows from what they round, with F32 weights: off-flash sums V in f16, 300 times at 2^-11, which
    moves a logit of standard deviation 2.3 by less than 0.1; off-noflash rounds queries and weights alone, less than 0.01. Shifts of at
    most e make a divergence of at most e^2 / 2."""
    for _, flash, noflash, exact in _by_depth(run(synthetic(dtype="f32"), depths=(100, 300), n_steps=32)):
        for row in (noflash, exact):
            assert 0 < row["kld_stock"] < 0.1**2 / 2 and row["nll"] == pytest.approx(flash["nll"], abs=2 * 0.1)
        assert 0 < noflash["kld_exact"] < 0.01**2 / 2


def _by_depth(rows: list[dict], n_modes: int = 4) -> list[list[dict]]:
    return [rows[i : i + n_modes] for i in range(0, len(rows), n_modes)]


def test_stock_that_cannot_be_had_is_said(synthetic):
    """Without flash attention V is stored transposed, which q8_0 cannot be: then only one of stock's kernels exists."""
    off, flash, noflash, exact = run(synthetic(), cache_types=((CacheType.Q8_0, CacheType.Q8_0),))
    assert noflash["note"] == "llama.cpp needs flash attention for a q8_0 V cache" and noflash["decode_ms_p50"] is None
    assert noflash["kld_stock"] is None is noflash["ratio_vs_stock"] and exact["kld_stock"] is not None and exact["note"] is None
    assert {row["stock"] for row in (off, flash, exact)} == {"off-flash"} and off["decode_ms_p50"] == flash["decode_ms_p50"]
    assert "off-noflash is missing: llama.cpp needs flash attention" in off["note"]
    rows = run(synthetic(), modes=("off-noflash", "exact"), cache_types=((CacheType.Q8_0, CacheType.Q8_0),))
    assert all(row["decode_ms_p50"] is None and "needs flash attention" in row["note"] for row in rows)


def test_no_memory_for_a_second_context(synthetic, monkeypatch):
    asked = []

    def does_not_fit(*_) -> str | None:
        asked.append(None)
        return "does not fit: it needs 9 GiB" if len(asked) > 1 else None

    monkeypatch.setattr(Caches, "does_not_fit", does_not_fit)
    off, flash, noflash, exact = run(synthetic())
    assert noflash["note"] == "a second context does not fit: it needs 9 GiB" and exact["stock"] == "off-flash"


def test_one_of_stocks_kernels_where_it_is_named(synthetic):
    """`off` in the list means both; naming one alone saves the time of the other."""
    for named, expected in ((("off-flash", "exact"), ["off", "off-flash", "exact"]), (("off-noflash",), ["off", "off-noflash"]),
                            (("off", "off-noflash"), STOCKS), ((), STOCKS)):
        rows = run(synthetic(), modes=named, n_steps=2, n_rounds=1)
        assert [row["mode"] for row in rows] == expected and {row["stock"] for row in rows} <= set(expected)
        assert all(row["ratio_vs_stock"] is not None and row["note"] is None for row in rows)


def test_threads_repeat_the_depths(synthetic):
    rows = run(synthetic(), depths=(20, 30), threads=(2, 1), n_steps=2)
    assert [(row["threads"], row["depth"]) for row in rows[::4]] == [(2, 20), (2, 30), (1, 20), (1, 30)]
    assert rows[1]["nll"] == pytest.approx(rows[9]["nll"], abs=0.05)


def test_likelihood_is_that_of_the_text(synthetic):
    """The reported NLL is what a plain pass over the same tokens gives."""
    from edgekv.llama import Llama

    import llama_cpp

    off = run(synthetic(), n_steps=8, n_warmup=4)[1]
    llama = Llama(str(synthetic()), kv="off", n_ctx=256, n_threads=1, verbose=False)
    tokens = llama.tokenize(standard_text().content[:500].encode())
    llama.eval(tokens[:40])
    nll = []
    llama.eval(tokens[40:44])
    for position in range(44, 44 + 9):
        llama.eval([tokens[position]])
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llama.ctx, -1), (llama.n_vocab(),))
        nll.append(-log_softmax(logits)[tokens[position + 1]])
    llama.close()
    assert off["nll"] == pytest.approx(float(np.mean(nll)), abs=0.02)


def test_log_softmax_of_extremes():
    assert log_softmax(np.array([1000.0, 0.0], np.float32)) == pytest.approx([0.0, -1000.0])


def test_every_mode_gets_every_turn():
    assert [rotated(("a", "b"), turn) for turn in range(3)] == [("a", "b"), ("b", "a"), ("a", "b")]


@pytest.mark.parametrize(("n_steps", "n_rounds"), [(1, 1), (8, 1), (9, 3)])
def test_number_of_timed_steps(synthetic, monkeypatch, n_steps, n_rounds):
    counted = []
    figures = Tally.figures

    def counting(self, *rest):
        counted.append((len(self.milliseconds), len(self.nll)))
        return figures(self, *rest)

    monkeypatch.setattr(Tally, "figures", counting)
    run(synthetic(), n_steps=n_steps, n_rounds=n_rounds)
    assert counted == [(n_steps * n_rounds, n_steps + 1)] * 3, "the first step of a pass is compared and not timed"


def test_what_does_not_fit_is_a_row(synthetic):
    rows = run(synthetic(), depths=(40, 10**12))
    assert [row["note"] is None for row in rows] == [False] * 4 + [True] * 4
    assert rows[0]["note"].startswith("does not fit") and rows[0]["depth"] == 10**12 and rows[0]["decode_ms_p50"] is None


def test_short_text_is_a_row(synthetic):
    rows = run(synthetic(), texts=(Text("short", "hello"), standard_text()))
    assert "only 6 tokens" in rows[0]["note"] and [row["note"] for row in rows[4:]] == [None] * 4


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
    with pytest.raises(ConfigError, match="evict:keep=64 cannot take turns here: it drops what the modes after it"):
        KvBench(synthetic(), (), depths=(256,), modes=("evict:keep=64",))
    with pytest.raises(ConfigError, match="depth must be 1 or more"):
        KvBench(synthetic(), (), depths=())
    with pytest.raises(ConfigError, match="cannot be read"):
        read_text(tmp_path / "missing.txt")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_text(tmp_path / "binary")


def test_every_mode_runs(synthetic):
    """A sparse mode reads less than everything; the figures that a table of modes needs are there."""
    modes = tuple(name for name in MODES if not find_mode(name).destructive)
    changed = "sparse:resolution=100,error_every=1", "ema:attend=50%"
    rows = {row["mode"]: row for row in run(synthetic(), depths=(1200,), modes=(*modes, *changed), n_steps=40)}
    for name in (*modes[5:], *changed):
        row = rows[name]
        assert find_mode(name).changes["mode"] is KvMode.SPARSE and row["note"] is None
        assert 0 < row["attended_fraction"] < 1 and 0 <= row["hit_rate"] <= 1 and 0 <= row["hit_rate_mass"] <= 1 + 1e-6
        assert row["rows_per_head"] == pytest.approx(1236 * row["attended_fraction"], rel=0.05)
        sampled = name.startswith("sparse")
        assert row["error"] > 0 if sampled else row["error"] is None
        assert row["attended_fraction"] < row["coverage"] < 1 if sampled else row["coverage"] is None
        assert row["sketch_bytes"] > 0 if sampled else row["sketch_bytes"] is None
        assert row["moved_bytes_per_step"] >= 0 and row["overhead_fraction"] > 0
        assert row["kld_exact"] > 0 and row["kld_stock"] > 0 and row["arena_bytes"] > 0
    assert rows[changed[0]]["attended_fraction"] < rows["sparse"]["attended_fraction"]
    assert rows[changed[0]]["error"] > 2 * rows["sparse"]["error"] and rows[changed[0]]["coverage"] < rows["sparse"]["coverage"]
    assert rows["ema"]["attended_fraction"] == pytest.approx(0.125, abs=0.05) == rows["streaming"]["attended_fraction"]
    assert rows[changed[1]]["attended_fraction"] == pytest.approx(0.5, abs=0.05)
    assert rows["off"]["arena_bytes"] is None is rows["exact"]["arena_bytes"]


def test_passes_do_not_know_of_each_other(synthetic):
    """What a mode predicts does not depend on the modes before it: its policy begins anew, and residency changes nothing."""
    settings = {"depths": (1200,), "n_rounds": 1, "n_steps": 11}  # 16 + 1 + 11 steps: the policy runs after every fourth
    alone = run(synthetic(), modes=("exact", "sparse"), **settings)[-1]
    after = run(synthetic(), modes=("exact", "sparse:resolution=500", "ema", "sparse"), **settings)[-1]
    assert after["mode"] == alone["mode"] == "sparse"
    assert (after["nll"], after["kld_exact"]) == pytest.approx((alone["nll"], alone["kld_exact"]), rel=1e-4)


def test_modes_can_be_changed():
    mode = find_mode("sparse:resolution=1e3,keep_rows=on,kv_budget=2MiB,error_every=2,sketch=b3")
    options = mode.options(KvOptions(), 4096)
    assert (options.selection.resolution, options.selection.keep_rows, options.selection.error_every) == (1000.0, True, 2)
    assert options.placement.kv_budget == 2 << 20 and options.selection.sketch is SketchKind.B3 and options.mode is KvMode.SPARSE
    assert str(find_mode("sparse:sketch=none,attend=10%").options(KvOptions(), 4096).selection.attend) == "10%"
    assert find_mode("sparse:kv_budget=auto").options(KvOptions(), 4096).placement.kv_budget is None
    assert find_mode("streaming").options(KvOptions(), 8000).selection.recent_tokens == 1000 - KvOptions().selection.sink_tokens
    assert find_mode("sparse:sketch=none").figures == {"error": None} and find_mode("sparse").figures == {}


@pytest.mark.parametrize(("name", "sentence"), [
    ("fish", "choose one of: off, "), ("sparse:fins=2", "with one of mode, resolution, sketch, "),
    ("sparse:resolution", "write NAME=VALUE"), ("sparse:resolution=much", "resolution is 'much'; it must be a number"),
    ("sparse:keep_rows=perhaps", "it must be on or off"), ("sparse:error_every=0.5", "a whole number"),
    ("sparse:resolution=0.5", "a number from 1"), ("sparse:coverage=0.9", "is not a change"), ("sparse-box", "choose one of: off, "),
    ("sparse:attend=10%", "attend works without sketches only, .* use resolution, or sketch none"), ("ema:resolution=9", "the sketch is none; use attend"),
    ("sparse:sketch=b7", "use one of: b3, none"), ("sparse:kv_budget=much", "write bytes"), ("sparse:page_tokens=32", "is not a change"),
    ("exact:resolution=100", "resolution works in mode sparse only, and the mode is exact; use mode sparse"),
    ("off:kv_vram=1GiB", "kv_vram does nothing in mode off"),
    ("sparse:policy=ema+fish", "there is no policy 'fish'"), ("sparse:prefetch=fish", "there is no prefetch 'fish'")])
def test_modes_that_are_none(name, sentence):
    with pytest.raises(ConfigError, match=sentence):
        find_mode(name)


def test_lists_of_modes():
    assert split_modes("off, exact") == ("off", "exact")
    changed = ("sparse:resolution=1000,policy=lru", "ema", "streaming:attend=5%")
    assert split_modes(",".join(changed)) == changed
    assert in_order(("sparse", "exact", "sparse")) == ("off", "exact", "sparse") and in_order(("ema",)) == ("off", "ema")


def test_help_names_every_mode():
    words = re.sub(r"-\n\s+", "-", invoke("--help").stdout).replace(",", " ").replace(";", " ").split()
    assert {name for name in MODES if not find_mode(name).destructive} <= set(words)


def test_texts_are_long():
    assert all(len(find_text(name).content) > 250_000 for name in TEXTS)
    assert find_text("code").content == find_text("code").content
    with pytest.raises(ConfigError, match="one of: prose, code, dialogue"):
        find_text("missing.txt")


def test_dialogue_is_read_in_the_models_own_template(default_model, synthetic):
    from edgekv.llama import Llama

    dialogue = find_text("dialogue")
    llama = Llama(str(default_model), n_ctx=64, vocab_only=True, verbose=False)
    tokens = dialogue.tokens(llama, 3000)
    assert len(tokens) == 3000 and tokens[:1000] == dialogue.tokens(llama, 1000)
    turn_end = llama.tokenize(b"<|im_end|>", add_bos=False, special=True)[0]
    assert tokens.count(turn_end) > 30
    llama.close()
    plain = Llama(str(synthetic()), n_ctx=64, verbose=False)
    assert plain.detokenize(dialogue.tokens(plain, 200)).decode().lstrip().lower().startswith("user: ")
    plain.close()


def invoke(*arguments: str):
    return CliRunner().invoke(command, ["kv", *arguments])


def test_command(synthetic, tmp_path):
    text = tmp_path / "own.txt"
    text.write_text("The cat sat on the mat. " * 40)
    common = (str(synthetic()), "-d", "64,128", "-n", "4", "-r", "1", "--text", str(text), "--type-k", "f16,q8_0",
              "--modes", "off,exact")
    result = invoke(*common, "-o", "json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert len(rows) == 16 and all(KEYS <= set(row) and row["text"] == "own.txt" for row in rows)
    assert all(row["cpu"] == cpu_family() and re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"]) for row in rows)
    assert {(row["type_k"], row["type_v"]) for row in rows} == {("f16", "f16"), ("q8_0", "f16")}
    rows = list(csv.DictReader(io.StringIO(invoke(*common, "-o", "csv").stdout)))
    assert len(rows) == 16 and {row["cpu"] for row in rows} == {cpu_family()}
    head, empty, *table = invoke(*common).stdout.splitlines()
    assert head.startswith(cpu_family()) and re.search(r"; \d{4}-\d\d-\d\d; ", head) and empty == ""
    assert table[0].split()[:4] == ["mode", "depth", "threads", "K/V"] and len(table) == 17
    assert re.search(r"ms/token +x stock +best stock +limit ms +x limit", table[0])
    markdown = invoke(*common, "-o", "md").stdout.splitlines()
    assert markdown[0].startswith(cpu_family()) and markdown[1] == "" and markdown[2].startswith("| mode |")


def test_command_refuses(synthetic):
    path = str(synthetic())
    assert invoke(path, "-d", "0").exit_code == 2
    assert invoke(path, "-d", "many").exit_code == 2
    assert invoke(path, "--type-k", "f16,q8_0,f16", "--type-v", "f16,q8_0").exit_code == 2
    assert invoke(path, "--type-k", "q2_k").exit_code == 2
    assert isinstance(invoke(path, "--modes", "fish").exception, ConfigError)


def test_a_mode_that_drops_is_known_however_it_is_named():
    assert find_mode("evict").destructive and find_mode("sparse:mode=evict,keep=512").destructive
    assert not find_mode("sparse").destructive and not find_mode("evict:mode=exact").destructive
