"""Rates that are kept, and the time of a token that follows from them."""

import json
from functools import cache

import pytest
from msgspec import structs
from msgspec.structs import replace
from support.rates import ATTENTION, STEP, give_rates

from edgekv import _native
from edgekv.common.enums import KvMode
from edgekv.config import KvOptions
from edgekv.measure import weights as measuring
from edgekv.measure.busy import Others
from edgekv.measure.contexts import Contexts
from edgekv.models.geometry import open_model
from edgekv.models.traffic import traffic
from edgekv.planning.correction import correct
from edgekv.planning.host import (
    AttentionShape,
    HostRates,
    KeptRates,
    KernelRates,
    MatrixShape,
    WeightRates,
    attention_shape,
    kept_for,
    measured_weights,
    memory_gain,
)
from edgekv.planning.roofline import ROWS, HostRoofline, depth_at, rows_read

RATES = HostRates(2, 1e12, STEP, {"q4_0": WeightRates(5e9, 5e9, 40e9, 40e9)}, ATTENTION)

SMALL = MatrixShape(576, 1536)


@pytest.fixture(scope="module")
def header(header_file):
    return cache(lambda name, weight_type="q4_0": open_model(header_file(name, weight_type), whole=False))


def test_rows_follow_what_was_measured():
    assert [rows_read(depth, 2000) for depth, _ in ROWS] == [rows for _, rows in ROWS]
    assert rows_read(100, 2000) == 100 and rows_read(4 * 32_000, 2000) > rows_read(32_000, 2000)
    assert rows_read(7168, 8000) == pytest.approx(2 * rows_read(7168, 2000), abs=1)


def test_the_time_of_a_token(header):
    model = header("llama-3.2-1b")
    line = HostRoofline(model, KvOptions(mode="sparse"), RATES)
    base = STEP.token + traffic(model).active_bytes / 5e9 + 16 * 1e-5
    assert line.decode_seconds(KvMode.OFF, 8192) == pytest.approx(base + 16 * 2e-5 + 16 * 8 * 8192 * 60e-9)
    flash = base + 16 * 1e-5 + 16 * 8 * (2048 * 40e-9 + 52 * 160e-9)
    assert line.decode_seconds(KvMode.OFF, 2100) == pytest.approx(flash), "the faster one there"
    assert [KernelRates(0, 1, 2, 4, 0).cells(n) for n in (100, 2100, 5000)] == [100, 2048 + 2 * 52, 2048 + 2 * 2048 + 4 * 904]
    assert line.decode_seconds(KvMode.EXACT, 8192) == pytest.approx(base + 16 * 8 * 8192 * 30e-9)
    assert line.decode_seconds(KvMode.SPARSE, 7168) == pytest.approx(base + 16 * 8 * (403 * 40e-9 + 7168 * 5e-9))
    assert line.decode_seconds(KvMode.SPARSE, 700) == line.decode_seconds(KvMode.EXACT, 700), "a short context is attended whole"
    assert line.prompt_seconds(KvMode.SPARSE, 8192) < line.prompt_seconds(KvMode.OFF, 8192)
    slow = HostRoofline(model, KvOptions(mode="sparse"), replace(RATES, read=1e9))
    assert slow.decode_seconds(KvMode.EXACT, 8192) == pytest.approx(base + 8192 * 32_768 / 1e9), "memory is the bound"


def test_modes_have_rates_of_their_own(header):
    """EdgeKV has kernels of its own for some types of weights, for one token and for several."""
    model = header("llama-3.2-1b")
    line = HostRoofline(model, KvOptions(), replace(RATES, weights={"q4_0": WeightRates(5e9, 10e9, 20e9, 40e9)}))
    n = sum(traffic(model).prompt_weights.values())
    assert line.prompt_seconds(KvMode.OFF, 0) == pytest.approx(n / 20e9)
    assert line.prompt_seconds(KvMode.EXACT, 0) == pytest.approx(n / 40e9)
    alike = HostRoofline(model, KvOptions(), RATES)
    saved = traffic(model).active_bytes / 10e9
    assert alike.decode_seconds(KvMode.OFF, 0) == line.decode_seconds(KvMode.OFF, 0)
    for mode in (KvMode.EXACT, KvMode.SPARSE):
        assert alike.decode_seconds(mode, 0) - line.decode_seconds(mode, 0) == pytest.approx(saved)


def test_windows_and_recurrent_layers_do_not_grow(header):
    gemma, lfm2 = header("gemma-3-4b"), header("lfm2-1.2b")
    line = HostRoofline(gemma, KvOptions(), RATES)
    assert line.decode_seconds(KvMode.OFF, 8192) - line.decode_seconds(KvMode.OFF, 4096) == pytest.approx(5 * 4 * 4096 * 60e-9)
    line = HostRoofline(lfm2, KvOptions(), RATES)
    assert line.decode_seconds(KvMode.EXACT, 8192) - line.decode_seconds(KvMode.EXACT, 4096) == pytest.approx(6 * 8 * 4096 * 30e-9)


def test_a_mixture_reads_the_experts_it_uses(header):
    model = header("qwen3-30b-a3b", "bf16")
    read = traffic(model)
    assert read.active_bytes == pytest.approx(2 * 3.0e9, rel=0.05), "3.3 billion of 30.5, less the table of embeddings"
    assert sum(read.prompt_weights.values()) < 3.0e9


def test_layers_that_predict_are_not_read(header):
    """They lie behind the model's own, and llama.cpp counts them apart."""
    model = header("llama-3.2-1b")
    fewer = replace(model, geometry=replace(model.geometry, n_layer=15))
    last = sum(tensor.n_bytes for tensor in model.tensors if tensor.name.startswith("blk.15."))
    assert traffic(model).active_bytes - traffic(fewer).active_bytes == last > 0


def test_rows_are_as_long_as_the_model_s(header):
    """A product of short rows takes longer for each byte, so that rates are measured on the model's own sizes."""
    assert measured_weights(header("llama-3.2-1b")) == {"q4_0": MatrixShape(2048, 8192, n_mib=512)}
    assert measured_weights(header("qwen3-30b-a3b")) == {
        "q4_0 of experts": MatrixShape(2048, 768, 512, n_tokens=128, n_expert=32, n_used=8),  # 32 tokens each, as of 512 where there are 128
        "q4_0": MatrixShape(2048, 6144, 512)}
    assert measured_weights(header("llama-3-70b")) == {"q4_0": MatrixShape(2048, 8192, n_mib=512)}, "longer rows take no longer for a byte"
    assert [measured_weights(header(name))["q4_0"].n_mib for name in ("qwen3-0.6b", "tiny")] == [256, 16], "caches hold a part of few weights"
    odd = measuring._weights_shape(2, "q4_k", MatrixShape(576, 1600))
    assert (odd.n_embd, odd.n_ff) == (768, 1792), "whole blocks"


def test_depth_at():
    assert depth_at(5, lambda depth: 1000 / depth, 4096) == 200
    assert depth_at(5, lambda depth: 10.0, 4096) is None and depth_at(5, lambda depth: 1.0, 4096) == 0


# ---- what is kept ---------------------------------------------------------------------------------------------------------------


def test_rates_are_kept_by_machine(tmp_path):
    path, shape = tmp_path / "cache" / "host-rates.json", AttentionShape(64, 4)
    kept = KeptRates(2, "avx2", path)
    assert kept.read() is None and kept.attention(shape) is None
    kept.keep("read", 1e10)
    kept.keep("step", STEP)
    kept.keep(f"weights q4_0 {SMALL.name}", WeightRates(1.0, 1.0, 2.0, 2.0))
    kept.keep(f"attention {shape.name}", ATTENTION)
    assert (kept.read(), kept.step(), kept.attention(shape)) == (1e10, STEP, ATTENTION)
    assert kept.weights("q4_0", SMALL) == WeightRates(1.0, 1.0, 2.0, 2.0)
    assert kept.weights("q4_0", MatrixShape(576, 1600)) is None
    assert KeptRates(1, "avx2", path).read() is None and KeptRates(2, "portable", path).read() is None
    assert KeptRates(2, "avx2", path).attention(AttentionShape(64, 4, 2, "q8_0", "f16")) is None


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "{"])
def test_a_damaged_file_is_measured_again(tmp_path, text):
    path = tmp_path / "host-rates.json"
    path.write_text(text)
    kept = KeptRates(2, "avx2", path)
    assert kept.read() is None
    kept.keep(f"weights q4_0 {SMALL.name}", WeightRates(1.0, 1.0, 2.0, 2.0))
    assert KeptRates(2, "avx2", path).weights("q4_0", SMALL) == WeightRates(1.0, 1.0, 2.0, 2.0)
    everything = json.loads(path.read_text())
    next(entry for entry in everything.values() if isinstance(entry, dict))[f"weights q4_0 {SMALL.name}"]["decode"] = -1.0
    path.write_text(json.dumps(everything))
    assert KeptRates(2, "avx2", path).weights("q4_0", SMALL) is None


def test_measured_once(header, tmp_path, monkeypatch):
    """All rates of a model are measured, kept, and not measured again unless a person asks."""
    give_rates(monkeypatch, tmp_path, lambda kind: WeightRates(5e9, 5e9, 40e9, 40e9))
    model, kv, shown = header("tiny"), KvOptions(), []

    def show(*told):
        shown.append(told)

    assert kept_for(model, kv, KeptRates(1, "x")) is None and list(measured_weights(model)) == ["q4_0"]
    first = measuring.host_rates(model, kv, 1, show)
    assert shown == [(measuring.WHAT, done, 4) for done in range(4)] and first.read > 1e8
    assert measuring.host_rates(model, kv, 1, show) == first and len(shown) == 4
    measuring.host_rates(model, kv, 1, show, again=True)
    assert shown == 2 * [(measuring.WHAT, done, 4) for done in range(4)]
    assert first.busy == 0 and attention_shape(model.geometry, kv) == AttentionShape(64, 2)


def test_only_what_is_missing_is_measured(header, tmp_path, monkeypatch):
    give_rates(monkeypatch, tmp_path, lambda kind: WeightRates(5e9, 5e9, 40e9, 40e9))
    model, kv, shown = header("tiny"), KvOptions(), []
    KeptRates(1, _native.isa()).keep("read", 1e10)
    found = measuring.host_rates(model, kv, 1, lambda *told: shown.append(told))
    assert shown == [(measuring.WHAT, done, 3) for done in range(3)] and found.read == 1e10


def test_small_matrices_make_no_more_layers_than_llama_cpp_takes():
    """Of 64 MiB of such matrices there would be thousands, and llama.cpp ends the process."""
    for matrices in (MatrixShape(64, 128), SMALL, MatrixShape(2048, 8192, n_mib=512)):
        assert 2 <= measuring._layers(matrices.n_mib << 20, "q8_0", matrices) <= measuring._MOST_LAYERS < 512


def test_what_a_busy_machine_gives_is_not_kept(header, tmp_path, monkeypatch):
    """Rates of a busy machine serve once and are measured again until nobody disturbs. Rates that were kept before stay."""
    model, kv, shown, rates = header("tiny"), KvOptions(), [], iter([1e9, 2e9, 3e9])
    busy = [1.6]
    give_rates(monkeypatch, tmp_path, lambda kind: WeightRates(*[next(rates)] * 2, 40e9, 40e9), lambda: busy[0])
    for decode in (1e9, 2e9):
        found = measuring.host_rates(model, kv, 1, lambda *told: shown.append(told))
        assert found.busy == 1.6 and found.weights["q4_0"].decode_stock == decode and kept_for(model, kv, KeptRates(1, _native.isa())) is None
    assert shown == 2 * [(measuring.WHAT, done, 4) for done in range(4)], "nothing of it was kept: all is measured again"
    busy[0] = 0.0
    quiet = measuring.host_rates(model, kv, 1)
    assert quiet.busy == 0 and quiet.weights["q4_0"].decode_stock == 3e9 and kept_for(model, kv, KeptRates(1, _native.isa())) == quiet
    busy[0] = 1.6
    assert measuring.host_rates(model, kv, 1) == quiet, "nothing is measured"


@pytest.mark.parametrize("at_first", [True, False], ids=["before", "meanwhile"])
def test_beside_others_one_thread_is_measured(header, tmp_path, monkeypatch, at_first: bool):
    """Threads that wait for each other wait for other programs too: rates for several threads follow from one. The other programs may begin
    during the measurement."""
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    model, kv = header("tiny"), KvOptions()
    asked: dict[str, list[int]] = {"read": [], "step": [], "attention": [], "weights": []}
    busy = [1.6 if at_first else 0.0]

    def gives(name: str, found):
        def measure(n_threads: int):
            asked[name].append(n_threads)
            busy[0] = 1.6
            return found

        return measure

    monkeypatch.setattr(measuring, "read_rate", gives("read", 1e10))
    monkeypatch.setattr(measuring, "step_rates", gives("step", STEP))
    monkeypatch.setattr(measuring, "attention_rates", lambda shape, n_threads, read, step: gives("attention", ATTENTION)(n_threads))
    monkeypatch.setattr(measuring, "weight_rates", lambda kind, matrices, step, n_threads: gives("weights", WeightRates(5e9, 5e9, 4e10, 3e10))(n_threads))
    monkeypatch.setattr(Others, "busy", lambda self: busy[0])
    found = measuring.host_rates(model, kv, 4)
    assert asked == {"read": [1] if at_first else [4, 1], "step": [1], "attention": [1], "weights": [1]}
    gain = memory_gain(4)
    assert 2 < gain < 4 and found.busy == 1.6 and found.n_threads == 4 and found.read == pytest.approx(gain * 1e10)
    assert found.weights["q4_0"] == WeightRates(gain * 5e9, gain * 5e9, 4 * 4e10, 4 * 3e10)
    assert found.attention.exact.far == pytest.approx(ATTENTION.exact.far / gain) and found.attention.row == pytest.approx(ATTENTION.row / gain)
    assert kept_for(model, kv, KeptRates(4, _native.isa())) is None


def test_a_fast_token_corrects_what_is_kept(header, tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / name))
    model, kv, kept = header("llama-3.2-1b"), KvOptions(mode="exact"), KeptRates(2, "avx2")
    assert correct(kept, model, kv, KvMode.EXACT, 0, 1e-3) is None, "nothing is kept"
    kept.keep("read", 1e10)
    kept.keep("step", STEP)
    kept.keep(f"weights q4_0 {measured_weights(model)['q4_0'].name}", WeightRates(1e9, 1e9, 2e9, 3e9))
    kept.keep(f"attention {attention_shape(model.geometry, kv).name}", ATTENTION)
    rates = kept_for(model, kv, kept)
    seconds = HostRoofline(model, kv, rates).decode_seconds(KvMode.EXACT, 4096)
    assert correct(kept, model, kv, KvMode.EXACT, 4096, 3 * seconds) is None, "a token may be slow because others are busy"
    assert correct(kept, model, kv, KvMode.EXACT, 4096, seconds / 1.2) is None and kept_for(model, kv, kept) == rates
    assert correct(kept, model, kv, KvMode.EXACT, 4096, seconds / 20) == pytest.approx(20)
    after = kept_for(model, kv, kept)
    assert HostRoofline(model, kv, after).decode_seconds(KvMode.EXACT, 4096) == pytest.approx(seconds / 20)
    assert after.weights["q4_0"] == WeightRates(20e9, 20e9, 40e9, 60e9) and after.attention.row == ATTENTION.row / 20 and after.read == 20e10


def test_rates_of_this_machine(monkeypatch):
    """What is measured can be reckoned with; how fast it is, no test says. No measured token is the first one of a page: it would ask for its memory
    each time."""
    depths: list[int] = []
    fill_to = Contexts.fill_to
    monkeypatch.setattr(Contexts, "fill_to", lambda self, depth: (depths.append(depth), fill_to(self, depth)))
    step = measuring.step_rates(1)
    attention = measuring.attention_rates(AttentionShape(64, 2), 1, 1e10, step)
    rates = [step.token, step.layer, attention.row, attention.scan]
    rates += (value for kernel in (attention.exact, attention.flash, attention.plain) for value in structs.astuple(kernel))
    assert depths == [257, 257, 2049, 4097, 8193]
    assert len(rates) == 19 and all(0 < value < 1e-2 for value in rates)
    weights = measuring.weight_rates("q8_0", SMALL, step, 1)
    assert len(structs.astuple(weights)) == 4 and all(1e7 < rate < 1e13 for rate in structs.astuple(weights))
