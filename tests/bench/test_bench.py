"""`edgekv bench`: what it measures, fills and says. No speed is asserted."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from support.benches import measure
from support.homes import page_out

from edgekv.bench import needs, speed
from edgekv.bench.environment import environment
from edgekv.bench.meter import Meter
from edgekv.bench.passes import Passes
from edgekv.bench.request import BenchRequest
from edgekv.bench.row import LLAMA_BENCH, OURS
from edgekv.bench.speed import run
from edgekv.bench.taken import samples
from edgekv.bench.text import standard_text
from edgekv.cli.common.lists import numbers
from edgekv.common.errors import ConfigError, DoesNotFit, EdgeKVError, ModelError
from edgekv.measure.contexts import COMPUTED, Contexts, Opening, contexts
from edgekv.measure.decoder import Decoder
from edgekv.measure.filling import Bank, Fill, TokenLayout, put, taken
from edgekv.models import geometry
from edgekv.planning import home

MODES = ["off-flash", "off-noflash", "exact", "sparse"]


@pytest.mark.parametrize("text, found", [
    ("512", (512,)), ("1,2,4", (1, 2, 4)), ("0-8192+2048", (0, 2048, 4096, 6144, 8192)), ("1-8*2", (1, 2, 4, 8)), ("3-5", (3, 4, 5)),
    ("7,1-4+2", (7, 1, 3)), (" 1 , 2", (1, 2)),
])
def test_numbers(text, found):
    assert numbers(text) == found


@pytest.mark.parametrize("text", ["", "x", "1,", "4-2", "1-8*1", "0-8*2", "1-8+0", "1-8-2", "-3", "1.5", "0-100000",
                                  "99999999999", "0-8+99999999999", "9" * 5000])
def test_bad_numbers(text):
    with pytest.raises(ConfigError, match=r"\d"):
        numbers(text)


@pytest.mark.parametrize("settings, said", [
    ({"modes": ("fast",)}, "fast"), ({"modes": ("evict",)}, "cannot take turns"), ({"n_prompt": (0,), "n_gen": (0,)}, "no test"),
    ({"threads": (0,)}, "threads"), ({"budgets": (1 << 20,)}, "name a folder with --kv-dir"),
    ({"batches": (0,)}, "batch"),
    ({"modes": ("evict:evict_to=64",)}, "evict:evict_to=64 cannot take turns here: it drops what the modes after it"),
    ({"modes": ("fish",)}, "choose one of: off, "), ({"modes": ("sparse:kv_budget=1MiB",)}, "name a folder with --kv-dir"),
])
def test_what_cannot_be_measured(synthetic, settings, said):
    with pytest.raises(ConfigError, match=said):
        measure(synthetic(), **settings)


def test_samples_are_counted_as_llama_bench_does():
    figures = samples([1_000_000_000, 2_000_000_000], 100)
    assert figures["avg_ns"] == 1_500_000_000 and figures["avg_ts"] == 75 and figures["samples_ts"] == [100, 50]
    assert figures["stddev_ns"] == 707_106_781 and figures["stddev_ts"] == pytest.approx(35.355, abs=1e-3)
    assert samples([5], 1)["stddev_ns"] == 0


@pytest.fixture(scope="module")
def rows(synthetic) -> list[dict]:
    return measure(synthetic(), n_pg=((24, 6),), depths=(0, 200), n_gen=(16,))


def test_rows(rows):
    each = [*MODES]
    tests = [name + depth for depth in ("", " @ d200") for name in ("pp24", "tg16", "pp24+tg6")]
    assert [(row["test"], row["kv_mode"]) for row in rows] == [(test, mode) for test in tests for mode in each]
    assert {row["kind"] for row in rows} == {"bench"} and {row["note"] for row in rows} == {None}
    for row in rows:
        assert list(row) == [*LLAMA_BENCH, *OURS]
        assert len(row["samples_ns"]) == len(row["samples_ts"]) == 2 and min(row["samples_ns"]) > 0
        assert row["n_depth"] == (200 if "@" in row["test"] else 0) and row["fill"] == ("text" if row["n_depth"] else None)
        assert row["flash_attn"] == (row["kv_mode"] != "off-noflash") and row["ram_peak_mib"] > 1
        assert (row["kv_budget_mib"] is not None) == (row["kv_mode"] == "sparse")
        assert (row["ttft_ms"] is not None) == ("+" in row["test"]) and (row["tg_ts_p50"] is not None) == row["test"].startswith("tg")
    assert {row["kv_budget_mib"] for row in rows} == {None, 0.0}


def test_limits_and_predictions(rows):
    for row in rows:
        if row["test"] == "pp24":
            assert row["limit_ratio"] == 1
        assert (row["limit_ratio"] is None) == ("+" in row["test"])
        assert (row["nll"] is not None) == row["test"].startswith("tg")
        assert (row["kld"] is not None) == (row["test"].startswith("tg") and row["kv_mode"] != "off-flash")
        assert row["kld"] is None or -1e-9 < row["kld"] < 0.1
        assert row["coverage"] == (None if row["kv_mode"] == "sparse" else 1)


def test_sparse_reads_a_part_of_what_was_made_up(synthetic):
    rows = measure(synthetic(), n_prompt=(), n_gen=(8,), depths=(0, 1200), fill=Fill.SYNTHETIC, n_rounds=1)
    assert [row["fill"] for row in rows] == [None] * 4 + ["synthetic"] * 4
    sparse = rows[-1]
    assert 64 < sparse["rows_per_head"] < 1200 and sparse["hit_rate"] is not None and sparse["nll"] is None is sparse["kld"]
    assert 0 < sparse["coverage"] < 1
    assert rows[3]["rows_per_head"] is None and rows[3]["nll"] is not None, "the first tokens are attended whole"


# ---- what stands in the caches --------------------------------------------------------------------------------------------------


def opening(path, fill: Fill, n_ctx: int, **settings) -> Opening:
    settings = {"second": n_ctx, **settings}
    return Opening(path, standard_text().tokens, n_ctx, n_batch=64, n_ubatch=32, fill=fill, n_empty=0, **settings)


def next_logits(opened: Contexts, decoder: Decoder, depth: int) -> np.ndarray:
    decoder.decode(opened.token(depth, 1))
    logits = decoder.logits()
    decoder.rewind(depth)
    return logits


@pytest.mark.parametrize("kind", ["llama", "gemma2", "lfm2", "deepseek2"])
@pytest.mark.parametrize("fill", list(Fill))
def test_all_contexts_hold_the_same_at_each_depth(synthetic, fill, kind):
    """Also the one whose V lies transposed, and which has computed nothing; and where windows or states stand beside rows."""
    with contexts(opening(synthetic(kind), fill, 900, n_back=16), 2) as opened:
        for depth in (60, 300, 800):
            opened.fill_to(depth, lambda done, total: None)
            assert [decoder.position for decoder in opened.all()] == [depth, depth]
            one, other = (next_logits(opened, decoder, depth) for decoder in opened.all())
            assert np.abs(one - other).max() < 0.02 * np.abs(one).max()
            with_nothing = next_logits(opened, opened.of(True, empty=True), 0) if depth == 60 else None
            assert with_nothing is None or np.abs(one - with_nothing).max() > 0.1 * np.abs(one).max()


def test_a_bank_begins_again(synthetic):
    with contexts(opening(synthetic(), Fill.SYNTHETIC, 300), 2) as opened:
        opened.fill_to(COMPUTED, lambda done, total: None)
        layout = TokenLayout.of(opened.first)
        bank = Bank(layout, next(taken(opened.first, layout, 16, COMPUTED)), n=50)
        blocks = list(bank.blocks(70, 190))
        assert [block.nbytes // layout.token_bytes for block in blocks] == [30, 50, 40]
        put(opened.first, layout, blocks[0])
        assert opened.first.position == COMPUTED + 30
        assert (next(taken(opened.first, layout, COMPUTED, COMPUTED + 30)) == blocks[0]).all()


@pytest.mark.parametrize("kind", ["gemma2", "lfm2"])
def test_windows_and_states_go_back_to_their_marks(synthetic, kind):
    with contexts(opening(synthetic(kind), Fill.TEXT, 900, n_back=16), 2) as opened:
        opened.fill_to(600)
        for decoder in opened.all():
            there = next_logits(opened, decoder, 600)
            decoder.read(opened.token(600, 200), 64)
            decoder.rewind(584)
            decoder.read(opened.token(584, 16), 64)
            decoder.mark()
            assert np.abs(next_logits(opened, decoder, 600) - there).max() < 1e-3 * np.abs(there).max()
            with pytest.raises(EdgeKVError, match="back"):
                decoder.rewind(100)


@pytest.mark.parametrize("kind", ["mamba", "deepseek32"])
def test_what_an_index_or_a_state_alone_keeps_cannot_be_made_up(synthetic, kind):
    rows = measure(synthetic(kind), n_prompt=(), depths=(400,), fill=Fill.SYNTHETIC, n_rounds=1)
    assert all("--fill text" in row["note"] and row["avg_ts"] is None for row in rows) and len(rows) == 4
    rows = measure(synthetic(kind), n_prompt=(), depths=(400,), n_rounds=1)
    assert all(row["avg_ts"] for row in rows) and len(rows) == 4


# ---- what does not fit, is not there, or is interrupted -------------------------------------------------------------------------


def test_does_not_fit_is_a_row(synthetic, monkeypatch):
    path = synthetic()
    shape = geometry(path)
    monkeypatch.setattr(speed, "available_bytes", lambda: shape.file_bytes + (64 << 20))
    rows = measure(path, depths=(0, 1 << 20), n_rounds=1)
    deep = [row for row in rows if row["n_depth"]]
    assert len(deep) == 8 and all(row["note"].startswith("does not fit: a context of") and row["avg_ts"] is None for row in deep)
    assert all(row["avg_ts"] for row in rows if not row["n_depth"]), "the others are measured"


def test_a_second_context_that_does_not_fit_is_missing_alone(synthetic, monkeypatch):
    path = synthetic()
    whole = needs.Room.problem
    monkeypatch.setattr(needs.Room, "problem", lambda self, n_ctx, second=None: (
        "does not fit: a second context" if second is not None and second > 300 else whole(self, n_ctx, None)))
    rows = measure(path, depths=(0, 400), n_prompt=(), n_rounds=1)
    assert [(row["kv_mode"], row["note"]) for row in rows if row["avg_ts"] is None] == [("off-noflash", "does not fit: a second context")]
    assert next(row for row in rows if row["n_depth"] and row["best_stock"])["kv_mode"] == "off-flash"


def test_models_that_are_missing_are_said_before_anything_is_measured(synthetic, tmp_path):
    with pytest.raises(ModelError, match="no file"):
        next(run(BenchRequest((synthetic(), tmp_path / "no.gguf"), (standard_text(),)), environment(2), Meter()))


# ---- K and V on a disk ----------------------------------------------------------------------------------------------------------

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="a home on disk needs Linux")


def n_homes() -> int:
    return Path("/proc/self/maps").read_text().count("edgekv-home-")


@needs_linux
@pytest.mark.parametrize("fill", [Fill.TEXT, Fill.SYNTHETIC])
def test_a_home_on_disk_is_measured_in_its_file(synthetic, tmp_path, monkeypatch, fill):
    once, seen = Passes.one, []
    monkeypatch.setattr(Passes, "one", lambda *arguments: (seen.append(n_homes()), once(*arguments))[1])
    rows = measure(synthetic(), n_pg=((24, 6),), depths=(0, 200), modes=("exact", "sparse"), kv_dir=tmp_path, fill=fill)
    assert len(seen) == 24 and min(seen) > 0 and n_homes() == 0 and os.listdir(tmp_path) == []
    tests = [name + depth for depth in ("", " @ d200") for name in ("pp24", "tg6", "pp24+tg6")]
    assert [(row["test"], row["kv_mode"]) for row in rows] == [(test, mode) for test in tests for mode in ("exact", "sparse")]
    for row in rows:
        assert row["kv_dir"] == str(tmp_path) and row["note"] is None and min(row["samples_ns"]) > 0
        assert row["disk_pages"] >= 0 and row["ratio_vs_stock"] is None and not row["best_stock"] and row["kld"] is None
        predicts = row["test"].startswith("tg") and not (row["n_depth"] and fill is Fill.SYNTHETIC)
        assert (row["kld_exact"] is not None) == (predicts and row["kv_mode"] == "sparse")


@needs_linux
def test_predictions_from_a_disk_are_those_from_memory(synthetic, tmp_path):
    settings = {"n_prompt": (), "n_gen": (12,), "depths": (200,), "n_rounds": 1, "modes": ("exact", "sparse:sample_budget=60,exact_tokens=0")}
    rows = measure(synthetic(), **settings)
    there = measure(synthetic(), **settings, kv_dir=tmp_path, budgets=(0, 64 << 10))  # mode exact takes none
    nll = {row["kv_mode"]: row["nll"] for row in rows}
    assert [row["nll"] for row in there] == [nll[row["kv_mode"]] for row in there] and [row["kv_budget_mib"] for row in there] == [None, 0.0, 0.0625]
    assert all(row["kv_dir"] is None is row["disk_pages"] for row in rows)


@needs_linux
def test_pages_that_came_from_the_disk_are_counted(synthetic, tmp_path, monkeypatch):
    """What is let go before a token comes back while it is measured."""
    step = Decoder.decode

    def forgetful(self, tokens):
        page_out()
        return step(self, tokens)

    path = synthetic("llama", n_layer=2, n_head=8, n_head_kv=8, head_dim=128, n_ctx_train=8192)
    settings = {"n_prompt": (), "n_gen": (4,), "depths": (2048,), "n_rounds": 1, "modes": ("exact",), "kv_dir": tmp_path}
    assert measure(path, **settings)[0]["disk_pages"] < 100
    monkeypatch.setattr(Decoder, "decode", forgetful)
    (row,) = measure(path, **settings)
    if row["disk_pages"] == 0:
        pytest.skip("this file system keeps its pages in memory")
    assert 1000 < row["disk_pages"] < 10000, "K and V of 2,048 tokens take 4,096 pages"


@needs_linux
def test_a_folder_without_room_ends_the_run_before_anything_is_loaded(synthetic, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "contexts", None)  # opening any fails
    monkeypatch.setattr(home, "free_on_disk", lambda folder: 1 << 20)
    with pytest.raises(DoesNotFit, match=f"K and V of a context of 3,072 tokens take .* in {tmp_path}, and 1.0 MiB are free there; use a smaller -d"):
        measure(synthetic(), kv_dir=tmp_path, modes=("exact",), depths=(0, 3000))
