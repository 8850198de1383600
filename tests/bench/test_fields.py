"""What the rows of `edgekv bench` say: ratios, limits, prompts, predictions, what was read. No speed is asserted."""

import numpy as np
import pytest
from support.benches import measure

from edgekv.bench import passes
from edgekv.bench.modes import MODES, find_mode
from edgekv.bench.passes import LIMIT_TOKENS, Passes, weights_alone
from edgekv.bench.tally import Tally, log_softmax
from edgekv.bench.text import standard_text
from edgekv.common.enums import CacheType, KvMode
from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.lab.questions import typed
from edgekv.measure.decoder import Decoder
from edgekv.measure.filling import Fill
from edgekv.runtime import measured_types

STOCKS = ["off-flash", "off-noflash"]


def decode(*paths, **settings) -> list[dict]:
    return measure(*paths, **{"n_prompt": (), "n_gen": (12,), "depths": (40,), "threads": (1,), "modes": ("off", "exact"), **settings})


def prompts(*paths, **settings) -> list[dict]:
    return measure(*paths, **{"n_prompt": (32,), "n_gen": (), "depths": (0, 128), "threads": (1,), "modes": ("off", "exact"),
                              "ubatches": (32,), **settings})


# ---- ratios and limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slower", STOCKS)
def test_whichever_kernel_is_faster_is_stock(synthetic, monkeypatch, slower):
    once = Passes.one

    def slowed(self, mode, *rest):
        seconds, done = once(self, mode, *rest)
        name = STOCKS[not mode.flash_attn] if mode.changes["mode"] is KvMode.OFF else "exact"
        done.seconds[:] = [value + (10 if name == slower else 1) for value in done.seconds]
        return seconds, done

    monkeypatch.setattr(Passes, "one", slowed)
    rows = {row["kv_mode"]: row for row in decode(synthetic(), n_gen=(4,), n_rounds=1)}
    faster = ({*STOCKS} - {slower}).pop()
    assert [name for name, row in rows.items() if row["best_stock"]] == [faster] and rows[faster]["ratio_vs_stock"] == 1
    assert rows[slower]["ratio_vs_stock"] < 0.2 and rows["exact"]["ratio_vs_stock"] == pytest.approx(1, abs=0.2)


def test_every_row_says_how_far_above_the_weights_alone_it_is(synthetic, monkeypatch):
    emptied = []
    rewind = Decoder.rewind

    def watched(self, position):
        emptied.append((position, self.kv and self.kv.mode))
        rewind(self, position)

    monkeypatch.setattr(Decoder, "rewind", watched)
    taken: list[float] = []

    def alone(decoder, tokens):
        taken.append(len(taken) + 1.0)
        return [taken[-1] for _ in weights_alone(decoder, tokens)]

    monkeypatch.setattr(passes, "weights_alone", alone)
    rows = decode(synthetic(), depths=(40, 300), n_gen=(6,), n_rounds=2)
    assert emptied.count((1, KvMode.EXACT)) >= 2 * 2 * LIMIT_TOKENS, "a step of the limit begins behind one token, in our kernels"
    for row in rows:
        assert row["limit_ms"] > 0 and row["limit_ratio"] > 0
        assert row["limit_ratio"] == pytest.approx(1000 / row["tg_ts_p50"] / row["limit_ms"])
    assert len(taken) == 4 and {row["n_depth"]: row["limit_ms"] for row in rows} == {40: 1500, 300: 3500}, "one for each depth, in turns with the modes"


def test_a_limit_that_cannot_be_had_is_said(synthetic, monkeypatch):
    """The small context is not worth losing the others for, on a card whose memory is taken."""
    whole = Decoder.beside

    def refuse(self, n_ctx, *how):
        if n_ctx == 256:
            raise EdgeKVError("no room")
        return whole(self, n_ctx, *how)

    monkeypatch.setattr(Decoder, "beside", refuse)
    rows = decode(synthetic(), depths=(500,))
    assert {row["note"] for row in rows} == {"limit is missing: does not fit: no room"}
    assert all(row["limit_ms"] is None is row["limit_ratio"] and row["ratio_vs_stock"] for row in rows)
    assert all(row["attention_fraction"] is None and row["avg_ts"] for row in prompts(synthetic(), depths=(0, 500)))


# ---- stock's kernels, threads, models -------------------------------------------------------------------------------------------


def test_two_stock_kernels_are_the_measure(synthetic):
    """How far apart correct kernels are follows from what they round, with F32 weights: off-flash sums V in f16, 300 times at 2^-11, which
    moves a logit of standard deviation 2.3 by less than 0.1; off-noflash rounds queries and weights alone, less than 0.01. Shifts of at
    most e make a divergence of at most e^2 / 2."""
    rows = decode(synthetic(dtype="f32"), depths=(100, 300), n_gen=(32,))
    for flash, noflash, exact in (rows[:3], rows[3:]):
        for row in (noflash, exact):
            assert 0 < row["kld"] < 0.1**2 / 2 and row["nll"] == pytest.approx(flash["nll"], abs=2 * 0.1)
        assert 0 < noflash["kld_exact"] < 0.01**2 / 2


@pytest.fixture
def short_measurement(monkeypatch, tmp_path):
    """What types cost is measured over few tokens, and kept in a folder of the test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measured_types, "READ_TOKENS", 96)
    monkeypatch.setattr(measured_types, "STEPS", 64)


@pytest.mark.parametrize("fill", Fill)
def test_types_by_layer(synthetic, short_measurement, fill):
    bound = 2 * 2 * (64 * 34 // 32) + 6 * 2 * (64 * 18 // 32)  # of four layers with two heads of 64: two rows in q8_0, the others in q4_0
    rows = decode(synthetic(n_layer=4), cache_types=((CacheType.Q8_0, CacheType.Q8_0),), kv_bytes=(bound,), depths=(200,), fill=fill)
    assert [row["kv_mode"] for row in rows] == [*STOCKS, "exact"] * 2 and [row["type_k"] for row in rows[:3]] == ["q8_0"] * 3
    codes = rows[-1]["type_k"] + rows[-1]["type_v"]
    assert sorted(codes) == ["4"] * 6 + ["8"] * 2 and rows[-1]["note"] is None and rows[-1]["avg_ts"] > 0
    assert "needs flash attention" in rows[-2]["note"]
    assert fill is Fill.SYNTHETIC or rows[-1]["kld"] < 0.1**2 / 2, "stock attends the same rows"


def test_what_types_cost(synthetic, short_measurement):
    path = synthetic(n_layer=4)
    bound = 8 * 2 * (64 * 18 // 32)
    rows = list(typed.run(path, (bound,), 1, lambda what, done, total: None))
    assert [row["how"] for row in rows[:10]] == ["measured"] * 9 + ["estimated"] and rows[0]["times_noise"] == 1
    assert [row["types"] for row in rows[1:9]][-1] == "q4_0/q4_0" and rows[8]["bytes"] == rows[9]["bytes"] == bound
    assert rows[9]["types"] == "K q8_0 in 0 of 4 layers, V in 0, else q4_0" and rows[9]["kld"] == pytest.approx(rows[8]["kld"], rel=0.05)
    assert all((row["note"] is None) == (row["times_noise"] <= 2) for row in rows)
    with pytest.raises(ConfigError, match=f"--kv-bytes is {bound - 1:,}; give {bound:,} or more"):
        list(typed.run(path, (bound - 1,), 1, lambda what, done, total: None))


def test_stock_that_cannot_be_had_is_said(synthetic):
    """Without flash attention V is stored transposed, which q8_0 cannot be: then only one of stock's kernels exists."""
    types = ((CacheType.Q8_0, CacheType.Q8_0),)
    for measured in (decode(synthetic(), cache_types=types), prompts(synthetic(), cache_types=types)[3:]):
        flash, noflash, exact = measured
        assert noflash["note"] == "llama.cpp needs flash attention for a q8_0 V cache" and noflash["avg_ts"] is None
        assert noflash["kld"] is None is noflash["ratio_vs_stock"] and exact["note"] is None and exact["ratio_vs_stock"]
        assert flash["best_stock"] and (exact["kld"] is None) == (exact["n_gen"] == 0)
    rows = decode(synthetic(), modes=("off-noflash", "exact"), cache_types=types)
    assert all(row["avg_ts"] is None and "needs flash attention" in row["note"] for row in rows)


def test_one_of_stocks_kernels_where_it_is_named(synthetic):
    """`off` in the list means both; naming one alone saves the time of the other."""
    for named, expected in ((("off-flash", "exact"), ["off-flash", "exact"]), (("off-noflash",), ["off-noflash"]),
                            (("off", "off-noflash"), STOCKS), ((), STOCKS)):
        rows = decode(synthetic(), modes=named, n_gen=(2,), n_rounds=1)
        assert [row["kv_mode"] for row in rows] == expected and sum(row["best_stock"] for row in rows) == 1
        assert all(row["ratio_vs_stock"] is not None and row["note"] is None for row in rows)


def test_partly_hooked_models_say_so(synthetic):
    for rows in (decode(synthetic("lfm2")), prompts(synthetic("lfm2"))):
        assert "2 of 4 layers run stock in every mode: recurrent" in rows[1]["note"] and all(row["avg_ts"] for row in rows)
    assert not decode(synthetic("gemma2"))[1]["note"], "windows are attended whole"


# ---- prompts --------------------------------------------------------------------------------------------------------------------


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


def test_what_attention_takes_of_a_prompt(synthetic, clock):
    """The share of attention is what the depth adds; a pair is a query, a key and a query head of a served layer: 2 layers of 4 heads."""
    rows = {(row["n_depth"], row["kv_mode"]): row for row in prompts(synthetic(), depths=(0, 1000), threads=(2,))}
    assert rows[0, "exact"]["ms_max"] == pytest.approx(32) and rows[0, "off-flash"]["avg_ts"] == pytest.approx(1000)
    assert rows[0, "exact"]["limit_ratio"] == 1 and rows[0, "exact"]["attention_fraction"] is None is rows[0, "exact"]["pair_ns"]
    for mode, ms in (("off-flash", 3.0), ("off-noflash", 2.0), ("exact", 1.25)):
        row = rows[1000, mode]
        assert row["ms_min"] == row["ms_max"] == pytest.approx(32 * ms) and row["attention_fraction"] == pytest.approx(1 - 1 / ms)
        assert row["limit_ratio"] == pytest.approx(ms) and row["growth"] == pytest.approx(ms - 1)
        assert row["pair_ns"] == pytest.approx(1e6 * 2 * (ms - 1) / (1000 * 2 * 4)), "nanoseconds of two threads"
        assert row["best_stock"] == (mode == "off-noflash") and row["ratio_vs_stock"] == pytest.approx(2 / ms)


def test_prompts_take_turns_behind_the_depth_and_in_an_empty_cache(synthetic, clock):
    """Each turn of a mode reads the prompt behind the depth and into an empty cache, after a token that takes the change of mode; the depths
    are read in once, with full attention."""
    prompts(synthetic(), depths=(64, 128), threads=(2, 1))
    for name in ("off-flash", "off-noflash", "exact"):
        for depth in (64, 128):
            assert clock.count((name, depth, 32)) == 4 + (depth == 64 and name == "exact")  # once to fill
        assert clock.count((name, 0, 32)) >= 8 and clock.count((name, 0, 1)) >= 8
    assert [seen for seen in clock if seen[1] in (32, 96)] == [("exact", 32, 32), ("exact", 96, 32)]
    order = [name for name, position, n in clock if position == 128 and n == 32]
    assert order[:6] == ["off-flash", "off-noflash", "exact", "off-noflash", "exact", "off-flash"]


# ---- predictions ----------------------------------------------------------------------------------------------------------------


def test_likelihood_is_that_of_the_text(synthetic):
    """The reported NLL is what a plain pass over the same tokens gives."""
    from edgekv.llama import Llama

    import llama_cpp

    off = decode(synthetic(), n_gen=(8,))[0]
    llama = Llama(str(synthetic()), kv="off", n_ctx=256, n_threads=1, verbose=False)
    tokens = llama.tokenize(standard_text().content[:500].encode())
    llama.eval(tokens[:40])
    nll = []
    for position in range(40, 40 + 9):
        llama.eval([tokens[position]])
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llama.ctx, -1), (llama.n_vocab(),))
        nll.append(-log_softmax(logits)[tokens[position + 1]])
    llama.close()
    assert off["nll"] == pytest.approx(float(np.mean(nll)), abs=0.02)


@pytest.mark.parametrize(("n_steps", "n_rounds"), [(1, 1), (8, 1), (9, 3)])
def test_number_of_timed_steps(synthetic, monkeypatch, n_steps, n_rounds):
    counted: dict[Tally, tuple[int, int]] = {}
    time, compare = Tally.time, Tally.compare

    def counting(self, *rest, then):
        then(self, *rest)
        counted[self] = len(self.milliseconds), len(self.nll)

    monkeypatch.setattr(Tally, "time", lambda self, *rest: counting(self, *rest, then=time))
    monkeypatch.setattr(Tally, "compare", lambda self, *rest: counting(self, *rest, then=compare))
    decode(synthetic(), n_gen=(n_steps,), n_rounds=n_rounds)
    assert list(counted.values()) == [(n_steps * n_rounds, n_steps + 1)] * 3, "the first step of a pass is compared and not timed"


def test_every_mode_runs(synthetic):
    """A sparse mode reads less than everything; the figures that a table of modes needs are there."""
    modes = tuple(name for name in MODES if not find_mode(name).destructive)
    changed = "sparse:sample_budget=100,error_every=1"
    rows = {row["kv_mode"]: row for row in decode(synthetic(), depths=(1200,), modes=(*modes, changed), n_gen=(40,), n_warmup=16)}
    for name in ("sparse", changed):
        row = rows[name]
        assert find_mode(name).changes["mode"] is KvMode.SPARSE and row["note"] is None
        assert 0 < row["attended_fraction"] < row["coverage"] < 1 and 0 <= row["hit_rate"] <= 1 and 0 <= row["hit_rate_mass"] <= 1 + 1e-6
        assert row["rows_per_head"] == pytest.approx(1220 * row["attended_fraction"], rel=0.05)
        assert row["error"] > 0 and row["sketch_mib"] > 0
        assert row["bytes_moved"] >= 0 and row["stall_ms"] >= 0 and row["overhead_fraction"] > 0
        assert row["kld_exact"] > 0 and row["kld"] > 0
    assert rows[changed]["attended_fraction"] < rows["sparse"]["attended_fraction"]
    assert rows[changed]["error"] > 2 * rows["sparse"]["error"] and rows[changed]["coverage"] < rows["sparse"]["coverage"]
    assert rows["off-flash"]["kv_budget_mib"] is None is rows["exact"]["kv_budget_mib"]


def test_passes_do_not_know_of_each_other(synthetic):
    """What a mode predicts does not depend on the modes before it: its policy begins anew, and residency changes nothing."""
    settings = {"depths": (1200,), "n_rounds": 1, "n_gen": (11,), "n_warmup": 16}  # 16 + 1 + 11 steps: the policy runs after every fourth
    alone = decode(synthetic(), modes=("exact", "sparse"), **settings)[-1]
    after = decode(synthetic(), modes=("exact", "sparse:sample_budget=500", "sparse:sample_budget=50", "sparse"), **settings)[-1]
    assert after["kv_mode"] == alone["kv_mode"] == "sparse"
    assert (after["nll"], after["kld_exact"]) == pytest.approx((alone["nll"], alone["kld_exact"]), rel=1e-4)
