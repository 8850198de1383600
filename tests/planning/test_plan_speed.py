"""A plan's speeds against measured ones. This takes minutes on a machine that does nothing else, so that it runs only where
EDGEKV_PLAN_SPEED names numbers of threads."""

import os
import statistics
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgekv.bench.environment import environment
from edgekv.bench.meter import Meter
from edgekv.bench.request import BenchRequest
from edgekv.bench.speed import run
from edgekv.bench.text import find_text
from edgekv.common.enums import KvMode
from edgekv.config import KvOptions
from edgekv.measure.filling import Fill
from edgekv.measure.weights import host_rates
from edgekv.models.geometry import open_model
from edgekv.models.model_writer import write_model
from edgekv.models.shapes import SHAPES
from edgekv.planning.roofline import HostRoofline

THREADS = [int(n) for n in os.environ.get("EDGEKV_PLAN_SPEED", "").split(",") if n]
DEPTHS = (1024, 4096, 7424)
MODES = (KvMode.OFF, KvMode.EXACT, KvMode.SPARSE)
NEAR = 0.2
"""An estimate may be so far from the measured speed."""


@pytest.fixture(scope="session")
def qwen(tmp_path_factory) -> Path:
    return write_model(replace(SHAPES["qwen3-0.6b"], n_layer=8), tmp_path_factory.mktemp("qwen") / "qwen3-0.6b-8.gguf", "q4_0")


@pytest.mark.skipif(not THREADS, reason="EDGEKV_PLAN_SPEED is not set to numbers of threads, as in 1,2")
@pytest.mark.parametrize("n_threads", THREADS)
@pytest.mark.parametrize("name", ["default_model", "qwen"])
def test_estimates_are_near(name, n_threads, request, tmp_path, monkeypatch):
    path: Path = request.getfixturevalue(name)
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda app: str(tmp_path / app))
    model, kv = open_model(path), KvOptions(mode=KvMode.SPARSE)
    line = HostRoofline(model, kv, host_rates(model, kv, n_threads))
    fill = Fill.TEXT if name == "default_model" else Fill.SYNTHETIC
    asked = BenchRequest((path,), (find_text("prose"),), n_prompt=(256,), n_gen=(16,), depths=DEPTHS, threads=(n_threads,), n_rounds=3, fill=fill)
    far = []
    print(f"\n{name}, {n_threads} threads: tokens/s, estimated / measured")
    for rows in run(asked, environment(n_threads), Meter()):
        for mode in MODES:
            row = next(row for row in rows if (row["best_stock"] if mode is KvMode.OFF else row["kv_mode"] == mode.value))
            measured = statistics.median(row["samples_ts"])
            n_prompt, depth = row["n_prompt"], row["n_depth"]
            seconds = line.prompt_seconds(mode, depth + n_prompt // 2) if n_prompt else line.decode_seconds(mode, depth)
            ratio = 1 / seconds / measured
            print(f"{rows[0]['test']:16} {mode.value:7} {1 / seconds:8.1f} / {measured:8.1f}  {ratio:5.2f}")
            if not 1 - NEAR <= ratio <= 1 + NEAR:
                far.append((row["test"], mode.value, round(ratio, 2)))
    assert not far
