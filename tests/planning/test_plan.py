"""The plan: parts against what llama.cpp and EdgeKV allocate, the published example, limits, speeds and what is recommended."""

import csv
import logging
import re
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.rates import ATTENTION, STEP

from edgekv._native.device_calls import Rates
from edgekv.common.enums import KvMode
from edgekv.common.errors import ModelError
from edgekv.config import KvOptions
from edgekv.llama import Llama
from edgekv.models import geometry
from edgekv.models.geometry import open_model
from edgekv.planning.allocations import HOST, ContextRequest, Slots, home_bytes, host_parts
from edgekv.planning.device_fit import DeviceRoom
from edgekv.planning.device_roofline import DeviceRoofline, hit_share
from edgekv.planning.fit import layers, plain_layers
from edgekv.planning.host import HostRates, WeightRates
from edgekv.planning.plan import GAINS_FROM, fitting_context, make_plan, users
from edgekv.runtime.wiring import ROWS_SHARE

MIB, GB = 1 << 20, 10**9
EXACT, SPARSE, OFF = (KvOptions(mode=mode, attention_device="cpu") for mode in ("exact", "sparse", "off"))
RATES = HostRates(2, 10e9, STEP, {"bf16": WeightRates(8e9, 8e9, 50e9, 50e9), "q4_0": WeightRates(5e9, 5e9, 40e9, 40e9),
                                   "f16": WeightRates(8e9, 8e9, 50e9, 50e9)},
                  ATTENTION)


@pytest.fixture(scope="module")
def header(header_file):
    return cache(lambda name, weight_type="bf16": open_model(header_file(name, weight_type), whole=False))


def request(model, kv=SPARSE, n_ctx=None, n_slots=1, available=64 * GB, **more) -> ContextRequest:
    return ContextRequest(model, kv, n_ctx, Slots(n_slots), available, **more)


# ---- the published example ------------------------------------------------------------------------------------------------------


def test_llama_3_70b(header):
    """Llama-3-70B, bf16: 327,680 bytes a token, 42.9 GB at 131,072; conversations of 4K in what its 4-bit weights leave of 80 GB."""
    model = header("llama-3-70b")
    assert model.geometry.kv_bytes_per_token() == 327_680
    assert home_bytes(model.geometry, 131_072, EXACT) == 327_680 * 131_072 == pytest.approx(42.9 * GB, rel=2e-3)
    plan = make_plan(request(model, EXACT, 131_072, available=80 * GB), None)
    assert plan.problem is not None and "weights take 131.4 GiB" in plan.problem and plan.users == 0
    small = header("llama-3-70b", "q4_0")
    asked = request(small, EXACT, 4096, available=80 * GB)
    left = 80 * GB - small.geometry.tensor_bytes
    assert users(asked, EXACT) == 29 == (left - 700 * MIB) // (4096 * 327_680)


# ---- what llama.cpp allocates ---------------------------------------------------------------------------------------------------

SIZE = dict(n_embd=256, n_ff=1024, n_head=8, n_head_kv=2, head_dim=64, n_vocab=4096, n_layer=4, n_ctx_train=16384)
GEOMETRIES = [  # kind, what differs, context, mode, type of K and V
    ("llama", {}, 4096, "sparse", "f16"), ("llama", {}, 5000, "exact", "q8_0"), ("qwen3", {"n_head_kv": 8}, 4096, "sparse", "f16"),
    ("qwen3", {"n_head_kv": 1}, 8192, "off", "f16"), ("gemma2", {"sliding_window": 1024}, 8192, "exact", "f16"),
    ("gpt-oss", {"sliding_window": 128}, 4096, "exact", "f16"), ("lfm2", {"n_head": 4}, 4096, "sparse", "f16"),
    ("mamba", {}, 4096, "off", "f16"), ("deci", {}, 4096, "exact", "f16"), ("deepseek2", {}, 4096, "exact", "f16"),
    ("llama", {}, 5120, "sparse", "q4_0"), ("deepseek2", {}, 4096, "sparse", "q8_0"), ("deepseek32", {}, 4096, "sparse", "q8_0"),
]


@pytest.mark.parametrize(("kind", "changes", "n_ctx", "mode", "cache"), GEOMETRIES)
def test_parts_are_what_is_allocated(synthetic, caplog, kind, changes, n_ctx, mode, cache):
    """GQA, one KV head, as many as query heads, sliding windows, a mixture, a hybrid, no attention at all, layers that differ, a compressed cache,
    an index beside it."""
    path = synthetic(kind, **SIZE | changes)
    kv = KvOptions(mode=mode, attention_device="cpu", type_k=cache, type_v=cache)
    with caplog.at_level(logging.INFO, "edgekv.llama.cpp"):
        llama = Llama(str(path), kv_options=kv, n_ctx=n_ctx, n_batch=512, n_ubatch=512, swa_full=False, verbose=False)
    said = dict.fromkeys(("model", "KV", "RS"), 0.0)
    for name, mib in re.findall(r"(model|KV|RS) buffer size =\s*([\d.]+) MiB", caplog.text):
        said[name] += float(mib)
    ours = llama.kv.memory()
    llama.close()
    parts = {part.name: part.bytes for part in host_parts(request(open_model(path)), n_ctx, kv)}
    for name, mib in (("weights", said["model"]), ("KV home", said["KV"]), ("recurrent state", said["RS"])):
        assert parts.get(name, 0) / MIB == pytest.approx(mib, rel=0.02, abs=0.006), name  # the log has two digits
    assert parts.get("sketches", 0) == ours.sketch_bytes and parts.get("arena", 0) == pytest.approx(ours.arena_bytes, rel=0.02)


def test_a_header_alone_is_no_model(header_file):
    path = header_file("llama-3-70b")
    assert path.stat().st_size < 8 * MIB
    with pytest.raises(ModelError, match="holds the header of a model and no weights; `edgekv plan` reads it"):
        geometry(path)


# ---- the plan -------------------------------------------------------------------------------------------------------------------


def test_short_contexts_gain_nothing(header):
    model = header("llama-3.2-1b")
    plan = make_plan(request(model, n_ctx=GAINS_FROM), RATES)
    assert plan.recommended == "off" and "nothing is gained" in plan.why
    unmeasured = make_plan(request(model, n_ctx=GAINS_FROM), None)
    assert unmeasured.recommended == "off" and "little or nothing is gained" in unmeasured.why


def test_a_small_model_gains_early(header):
    """Its weights are few, and attention counts from the beginning."""
    plan = make_plan(request(header("qwen3-0.6b", "q4_0"), n_ctx=GAINS_FROM), RATES)
    assert plan.recommended in ("exact", "sparse") and re.search(r"\d\.\dx as fast as stock", plan.why)


def test_long_contexts_gain(header):
    plan = make_plan(request(header("llama-3.2-1b", "q4_0"), n_ctx=65_536), RATES)
    assert plan.problem is None and plan.recommended == "sparse" and re.search(r"\d\.\dx as fast as stock", plan.why)
    assert plan.flags[:4] == ("--ctx", "65536", "--kv", "sparse") and "--attention-device" in plan.flags
    of = {(speed.mode, speed.depth): speed.decode for speed in plan.speeds}
    assert of["off", 131_072] < of["exact", 131_072] < of["sparse", 131_072] and of["off", 4096] > of["off", 8192]
    assert "on a processor K and V lie in the same memory" in plan.sentence and "The limit is speed" in plan.sentence
    stock, _, sparse = plan.limits
    assert stock.fits_tokens > sparse.fits_tokens > 131_072 and stock.readable_tokens < sparse.readable_tokens


def test_what_cannot_be_served_stays_stock(synthetic):
    plan = make_plan(request(open_model(synthetic("mamba")), n_ctx=4096), RATES)
    assert plan.recommended == "off" and plan.served_layers == 0 and "stock llama.cpp runs all of them" in plan.why


def test_a_compressed_cache(synthetic):
    """MLA: one row of 128 + 32 numbers in place of K and V of four heads. Modes exact and sparse serve it on the processor."""
    model = open_model(synthetic("deepseek2"))
    assert model.geometry.mla and model.geometry.kv_bytes_per_token() == 2 * (128 + 32) * 2
    plan = make_plan(request(model, n_ctx=4096), RATES)
    assert plan.served_layers == 2 and plan.kv_bytes_per_token == 640
    assert [(layer.served, layer.reason) for layer in layers(model.geometry)] == [(True, "compressed KV (MLA)")] * 2
    assert not plain_layers(model.geometry)
    indexed = open_model(synthetic("deepseek32")).geometry
    assert [(layer.served, layer.reason) for layer in layers(indexed)] == [(True, "compressed KV (MLA), an index lists what it attends")] * 2
    assert indexed.kv_bytes_per_token() == 2 * (128 + 32 + 64) * 2 and not plain_layers(indexed), "and a key of the index"
    odd = open_model(synthetic("deepseek2", n_latent=96, n_turned=32))
    assert [layer.reason for layer in layers(odd.geometry)] == ["no kernel for this head size: K has 128 numbers and V 96"] * 2


def test_on_a_gpu_the_limit_is_memory(header):
    """K and V of stock must fit beside the weights; EdgeKV's pages lie in host memory."""
    model = header("llama-3-8b", "q4_0")
    room = DeviceRoom("a GPU", 8 << 30, 8 << 30)
    kv = KvOptions(mode="exact", attention_device="cuda")
    plan = make_plan(request(model, kv, 65_536, room=room), None)
    assert plan.problem is None and plan.recommended == "exact" and plan.total("a GPU") <= room.free
    stock, exact, _ = plan.limits
    assert 8192 < stock.fits_tokens < 65_536 < exact.fits_tokens
    assert f"without EdgeKV this machine would stop at {stock.fits_tokens:,} tokens, where a GPU is full" in plan.sentence
    short = make_plan(request(model, kv, 8192, room=room), None)
    assert short.recommended == "off" and "fit into GPU memory" in short.why


def test_on_a_gpu_the_keys_of_what_rolls_on_cross_the_link_twice(header):
    """65,536 tokens of 32 layers, 8 heads and 128 channels in f16 have 4 GiB of keys, and in mode off they lie in GPU memory."""
    model, room = header("llama-3-8b", "q4_0"), DeviceRoom("a GPU", 24 << 30, 24 << 30)
    said = {mode: [note for note in make_plan(request(model, KvOptions(mode=mode), 65_536, room=room), None).notes if "--when-full roll" in note]
            for mode in ("exact", "sparse", "off")}
    assert all("4.0 GiB each way" in note for note in (*said["exact"], *said["sparse"])) and [*map(len, said.values())] == [1, 1, 0]


def test_on_a_gpu_rows_take_memory_as_tokens_come_where_its_driver_allows_it(header):
    """4,096 tokens of 32 layers, 8 heads and 128 channels in f16 have 512 MiB, and 512 tokens are pinned at a time: an eighth, and 64 MiB. A start with an
    automatic budget reads a ubatch of 2,048 tokens and one more."""
    model, room = header("llama-3-8b", "q4_0"), DeviceRoom("a GPU", 24 << 30, 24 << 30)
    for asked, at_start in ((1 << 30, 512), (None, 2560)):
        kv = KvOptions(mode="sparse", kv_vram=asked)
        whole, grows = (make_plan(request(model, kv, 4096, room=replace(room, pins_later=later)), None) for later in (False, True))
        assert whole.token_bytes == 0 and (whole.start_bytes - grows.start_bytes, grows.token_bytes) == (4096 - at_start << 17, 1 << 17)
    assert [next(part.note for part in plan.parts if part.name == "KV home") for plan in (whole, grows)] == [
        "K and V of all tokens, pinned", "K and V of all tokens, pinned as they come"]


def test_a_gpu_s_speed_follows_its_link(header):
    model, room = header("llama-3-8b", "q4_0"), DeviceRoom("a GPU", 8 << 30, 8 << 30)
    line = DeviceRoofline(model, KvOptions(mode="exact", attention_device="cuda"), room, Rates(20e9, 14e9, 12e9, 6e9, 900e9, 20e9, 5.0))
    assert line.decode_seconds(KvMode.OFF, 131_072) is None, "K and V of stock do not fit"
    exact, sparse = (line.decode_seconds(mode, 131_072) for mode in (KvMode.EXACT, KvMode.SPARSE))
    assert exact > 131_072 * 131_072 / 20e9 * 0.5 > sparse > 4.5e9 / 900e9


def test_an_arena_s_hits_are_those_that_the_lab_measured():
    lines = (Path(__file__).parents[2] / "edgekv/lab/results/rows_on_device.csv").read_text().splitlines()
    found: dict[float, list[float]] = {}
    for row in csv.DictReader(lines):
        if "made-up" not in row["text"] and float(row["pages_percent_of_it"]) == 100 * (1 - ROWS_SHARE):
            found.setdefault(float(row["memory_percent"]) / 100, []).append(float(row["hits_percent"]) / 100)
    assert [hit_share(hot) for hot in (0.05, 0.1, 0.2, 0.4)] == pytest.approx([min(found[hot]) for hot in (0.05, 0.1, 0.2, 0.4)])
    assert hit_share(0.0) == 0 and hit_share(1.0) == 1


def test_fitting_context(header):
    model = header("llama-3.2-1b", "q4_0")
    g = model.geometry
    assert fitting_context(model, 64 * GB) == g.n_ctx_train and fitting_context(model, g.tensor_bytes) == 0
    assert 256 <= fitting_context(model, g.tensor_bytes + 300 * MIB) < 8192
    assert HOST == "host"
