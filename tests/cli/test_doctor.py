"""`edgekv doctor` tells the truth on a healthy machine, and still tells something on a broken one."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from support.fake_gpus import CARD

from edgekv import _native, diagnosis
from edgekv._native import weight_types
from edgekv._native.weight_kernels import Kind
from edgekv._native.weight_types import WEIGHT_TYPES, _library, layouts
from edgekv.cli.doctor import doctor
from edgekv.common.enums import DeviceKind
from edgekv.common.errors import EXIT_LIBRARY, ModelError, NativeError
from edgekv.common.machine import cpu_family
from edgekv.planning import devices


def run(*arguments: str):
    return CliRunner().invoke(doctor, arguments)


def test_healthy():
    result = run("-o", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["libraries_error"] is None and "cpu" in report["backends"]
    assert report["isa"] in report["isa_available"] and "portable" in report["isa_available"]
    assert all(Path(path).is_file() for path in report["libraries"].values())
    assert report["gpu"]["reason"] and "model" not in report
    assert report["cpu"]["family"] == cpu_family() and re.fullmatch(r"\d{4}-\d\d-\d\d", report["date"])


def test_table():
    result = run()
    assert result.exit_code == 0, result.output
    labels = [line[:17].partition("  ")[0] for line in result.stdout.splitlines()]
    isa = "AVX2|AVX-512( with BF16)?|AMX|NEON|no vector instructions"
    assert re.match(rf"Ready: (.+, )?CPU, ({isa})\.( No GPU\.| The GPU is not used\.)?\n", result.stdout)
    assert labels.index("This machine") < labels.index("instructions") < labels.index("This installation") < labels.index("EdgeKV")
    assert {"backends", "gpu", "default model", "date"} <= set(labels)
    assert " = 1" not in result.stdout, "llama.cpp's own line of flags breaks inside them"
    assert cpu_family() in result.stdout


def test_weights_are_named_as_llama_cpp_lays_them_out(default_model):
    """The layouts are those that llama.cpp chooses when it loads the default model; the doctor names kernels of ours that read them."""
    weights = json.loads(run("-o", "json").stdout)["weights"]
    load = "import sys; from edgekv import Llama; Llama(sys.argv[1], n_ctx=512, verbose=True)"
    done = subprocess.run([sys.executable, "-c", load, str(default_model)], capture_output=True, text=True, timeout=120)
    laid_out = set(re.findall(r"(\S+) model buffer size", done.stderr)) & {*filter(None, weights.values()), "AMX", "CPU_REPACK"}
    chosen = layouts()["Q4_1"]
    assert laid_out == {chosen} - {None}
    assert weights["Q4_1"] == ("EDGEKV" if weight_types.multiplied_by_us("Q4_1", chosen) else chosen)
    assert set(weights) == set(WEIGHT_TYPES) - {"F16", "BF16"}


def test_weight_types_are_ggmls():
    ggml = _library()
    assert {kind: ggml.ggml_type_name(kind).decode().upper() for kind in WEIGHT_TYPES.values()} == {
        kind: name for name, kind in WEIGHT_TYPES.items()}


def test_weights_in_words(monkeypatch, synthetic):
    def said(found: dict[str, str | None], *arguments: str, ours: tuple[str, ...] = (), left: tuple[tuple[Kind, str], ...] = ()) -> list[str]:
        monkeypatch.setattr("edgekv._native.weight_kernels.left_to_llama_cpp", lambda kinds: [one for one in left if one[0] in kinds])
        monkeypatch.setattr("edgekv._native.weight_types.layouts", lambda: found)
        monkeypatch.setattr("edgekv._native.weight_types.multiplied_by_us", lambda name, layout: name in ours)
        return [line for line in run(*arguments).stdout.splitlines() if line.startswith(("weights ", " " * 16 + "none for", " " * 16 + "llama.cpp's"))]

    found = {"F16": "AMX", "Q8_0": "AMX", "Q5_1": None, "Q4_0": "AMX", "Q2_K": "CPU_REPACK", "IQ1_S": None}
    fast = "weights         fast kernels for Q8_0, Q4_0 (in tiles, AMX); Q2_K (in interleaved rows)"
    slow = "                none for Q5_1, IQ1_S: prompts are read several times more slowly with these"
    assert said(found) == [fast, slow] == said(found, str(synthetic())), "nothing is said of the file of plain floats"
    assert said({"Q4_1": None, "Q4_0": "CPU_REPACK"}, ours=("Q4_1", "Q4_0")) == [
        "weights         fast kernels for Q4_1, Q4_0 (by EdgeKV)"]
    slower = ((Kind("Q4_0", "CPU_REPACK"), "up to four tokens"), (Kind("Q4_1", None), "more tokens"), (Kind("Q8_0", None), "up to four tokens"))
    assert said({"Q4_1": None, "Q4_0": "CPU_REPACK"}, ours=("Q4_1", "Q4_0"), left=slower)[1:] == [
        "                llama.cpp's own where they were measured to be faster here: Q4_0 with up to four tokens (in interleaved rows), Q4_1 with more tokens"]
    assert said({"Q4_0": None}) == ["weights         no type has kernels of its own on this processor"]
    monkeypatch.setattr("edgekv.diagnosis.structs.asdict", lambda value, real=diagnosis.structs.asdict: {**real(value), **(
        {"file_type": "Q5_1"} if hasattr(value, "file_type") else {})})
    assert said(found, str(synthetic()))[2].startswith("weights         Q5_1 is not among the types that are multiplied fast here")


def test_model_whose_layers_differ(synthetic):
    report = json.loads(run(str(synthetic("gemma2")), "-o", "json").stdout)["model"]
    assert [layer["hooked"] for layer in report["layers"]] == [False, True]
    assert all(layer["reason"] for layer in report["layers"]) and report["layers_error"] is None
    assert report["kv_bytes_per_token"]["f16"] == 1024 and report["sliding_window"] == 64
    text = run(str(synthetic("gemma2"))).stdout
    assert "1,024 bytes a token" in text and "64 tokens in 1 of 2 layers" in text
    rows = [line.split() for line in text.splitlines() if line.startswith(("0 ", "1 "))]
    assert [row[:2] for row in rows] == [["0", "EdgeKV"], ["1", "EdgeKV"]] and "a sliding window, whole" in text
    assert [layer["whole"] for layer in report["layers"]] == [True, False]


def test_llama_cpp_speaks_in_the_log(synthetic):
    """llama.cpp warns where the cache of sliding-window layers is as large as the context."""
    path = str(synthetic("gemma2"))

    def python(code: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=120)

    done = python("import sys; from edgekv.cli.doctor import doctor; doctor.main([sys.argv[1]])")
    assert (done.returncode, done.stderr) == (0, "") and "full-size" not in done.stdout
    load = "import logging, sys; {}; from edgekv import Llama; Llama(sys.argv[1], n_ctx=512, swa_full=True, verbose={})"
    done = python(load.format("logging.basicConfig(level='WARNING', format='%(levelname)s %(name)s %(message)s', stream=sys.stdout)", False))
    assert "WARNING edgekv.llama.cpp llama_kv_cache_iswa: using full-size SWA cache" in done.stdout and done.stderr == ""
    assert "using full-size SWA cache" in python(load.format("0", True)).stderr, "verbose is for those who want to see it"


def test_bad_model(tmp_path):
    result = run(str(tmp_path / "missing.gguf"))
    assert isinstance(result.exception, ModelError)


def test_broken_libraries(monkeypatch, synthetic):
    def broken() -> dict:
        raise NativeError("libedgekv.so: cannot open shared object file")

    monkeypatch.setattr(_native, "info", broken)
    result = run(str(synthetic()))
    assert result.exit_code == EXIT_LIBRARY
    assert result.stdout.startswith("Not ready: EdgeKV CANNOT BE USED: libedgekv.so") and "default model" in result.stdout and "trained for" in result.stdout
    result = run("-o", "json")
    assert result.exit_code == EXIT_LIBRARY and "libedgekv" in json.loads(result.stdout)["libraries_error"]


def _nvidia_smi(folder: Path, script: str, monkeypatch) -> None:
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


LISTED = "echo 'NVIDIA H100 80GB HBM3, 81559 MiB, 550.54'"


@pytest.mark.parametrize(("script", "libcuda", "said"), [
    (None, None, "no NVIDIA driver"),
    (None, "libcuda.so.1", "not nvidia-smi"),
    (LISTED, "libcuda.so.1", 'pip install ".[cuda12]" builds it with the CUDA toolkit and EDGEKV_CUDA=on'),
    (LISTED, None, "libcuda is missing"),
    ("echo 'No devices were found'; exit 6", "libcuda.so.1", "No devices were found"),
])
def test_gpu_in_words(tmp_path, monkeypatch, gpus, script, libcuda, said):
    gpus()
    if script is None:
        monkeypatch.setattr(devices.shutil, "which", lambda name: None)
    else:
        _nvidia_smi(tmp_path, script, monkeypatch)
    monkeypatch.setattr(devices, "has_cuda_driver", lambda: libcuda is not None)
    monkeypatch.setattr(devices, "has_cuda_build", lambda: False)
    gpu = diagnosis._gpu(["cpu"])
    assert gpu["used"] is False and said in gpu["reason"]
    if script == LISTED and libcuda:
        assert gpu["devices"] == ["NVIDIA H100 80GB HBM3, 81559 MiB, driver 550.54"]


@pytest.fixture
def machine(gpus, monkeypatch):
    """A machine with a GPU, and a build for it."""
    monkeypatch.setattr(devices, "nvidia_gpus", lambda: (["GeForce RTX 4070, 12282 MiB, driver 580.65"], ""))
    monkeypatch.setattr(devices, "has_cuda_build", lambda: True)
    monkeypatch.setattr(devices, "cupy_version", lambda: "13.6.0")
    monkeypatch.setattr(diagnosis, "_built", lambda libraries: {"cpu", "cuda"})
    return gpus(CARD)


def test_with_a_gpu(machine):
    text = run().stdout
    assert "gpu             in use" in text and "libedgekv-cuda" in text and "13.6.0" in text and "ulimit -l" in text
    assert "GeForce RTX 4070, compute capability 8.9, 46 multiprocessors" in text
    assert "driver for CUDA 13.0, this build is of CUDA 13.0; 11.7 GiB of 12.0 GiB free" in text
    assert "25.0 GB/s" in text and "450.0 GB/s" in text and "2.3x as long" in text and "this build has code for it" in text
    report = json.loads(run("-o", "json").stdout)
    assert report["gpu"]["used"] and report["devices"][0]["rates"]["link_gather"] == 22e9
    assert machine.n_measured == 1
    run("--recalibrate")
    assert machine.n_measured == 2


def test_a_gpu_that_cannot_be_used(machine):
    machine.change(usable=False, problem="this build has no code for sm_75")
    text = run().stdout
    assert "not used: this build has no code for sm_75" in text and "CANNOT BE USED: this build has no code for sm_75" in text
    assert "GB/s" not in text and machine.n_measured == 0


def test_a_gpu_without_cupy(machine, monkeypatch):
    monkeypatch.setattr(devices, "cupy_version", lambda: None)
    text = run().stdout
    assert 'not used: CuPy is not installed; pip install "edgekv[cuda13]"' in text and "cupy            not installed" in text


def test_rates_that_cannot_be_measured(machine):
    machine.rates = None
    result = run()
    assert result.exit_code == 0 and "could not be measured: the device was lost" in result.stdout


def test_the_emulated_device_is_shown_where_it_is_asked_for(machine, monkeypatch):
    machine.infos.append(replace(CARD, kind=DeviceKind.EMULATED, name="emulated", arch=0, driver=0, runtime=0))
    assert [device["name"] for device in json.loads(run("-o", "json").stdout)["devices"]] == [CARD.name]
    monkeypatch.setenv("EDGEKV_ATTENTION_DEVICE", "emulated")
    assert [device["name"] for device in json.loads(run("-o", "json").stdout)["devices"]] == [CARD.name, "emulated"]


def test_device_plans(machine, synthetic, monkeypatch):
    path = str(synthetic(n_ctx_train=8192))
    plans = json.loads(run(path, "-o", "json").stdout)["model"]["device_plans"]
    assert [(plan["mode"], plan["n_ctx"]) for plan in plans] == [
        (mode, n) for mode in ("exact", "sparse") for n in (8192, 32768)]
    assert all(plan["problem"] is None and plan["hot_tokens"] == plan["n_ctx"] for plan in plans), "all of it fits the card"
    assert [plan["home"] for plan in plans] == [8192 * 1024, 32768 * 1024] * 2
    monkeypatch.setenv("EDGEKV_KV_VRAM", "18MiB")
    text = run(path).stdout
    assert "on GeForce RTX 4070, in GiB" in text and "hot tokens" in text
    assert "exact at 32,768 tokens does not fit: a context of 32,768 tokens needs" in text and "use --kv-vram" in text
    rows = [line.split() for line in text.splitlines() if line.startswith(("exact  ", "sparse  "))]
    assert [row[-1] for row in rows] == ["yes", "no", "yes", "no"]


def test_pages_need_host_memory(machine, synthetic, monkeypatch):
    monkeypatch.setattr("edgekv.planning.available.available_bytes", lambda: 16 << 20)
    plans = json.loads(run(str(synthetic(n_ctx_train=8192)), "-o", "json").stdout)["model"]["device_plans"]
    assert [plan["problem"] for plan in plans][:2] == [None, "the pages take 32.0 MiB of host memory, and 16.0 MiB are free"]


def test_a_build_for_every_processor_is_told():
    built = {"libggml-base.so": "", "libggml.so": "", "libggml-cpu-haswell.so": "", "libggml-cpu-zen4.so": "", "libedgekv.so": ""}
    assert diagnosis._built(built) == {"cpu-haswell", "cpu-zen4"} and diagnosis._built({"libggml-cpu.so": ""}) == {"cpu"}
    assert json.loads(run("-o", "json").stdout)["built_for"] == []
    assert "built for       this kind of processor alone" in run().stdout
