"""`edgekv doctor`: it tells the truth on a healthy machine, and still tells something on a broken one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgekv import _native, diagnosis
from edgekv.cli.doctor import doctor
from edgekv.errors import EXIT_LIBRARY, ModelError, NativeError


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


def test_table():
    result = run()
    assert result.exit_code == 0, result.output
    labels = [line[:16].strip() for line in result.stdout.splitlines()]
    assert labels[0] == "EdgeKV" and {"instructions", "backends", "gpu", "default model"} <= set(labels)


def test_model_whose_layers_differ(synthetic):
    report = json.loads(run(str(synthetic("gemma2")), "-o", "json").stdout)["model"]
    assert [layer["hooked"] for layer in report["layers"]] == [False, True]
    assert all(layer["reason"] for layer in report["layers"]) and report["layers_error"] is None
    assert report["kv_bytes_per_token"]["f16"] == 1024 and report["sliding_window"] == 64
    text = run(str(synthetic("gemma2"))).stdout
    assert "1,024 bytes a token" in text and "64 tokens in 1 of 2 layers" in text
    rows = [line.split() for line in text.splitlines() if line.startswith(("0 ", "1 "))]
    assert [row[:2] for row in rows] == [["0", "stock"], ["1", "EdgeKV"]]


def test_equal_layers_are_one_row(synthetic):
    text = run(str(synthetic(n_layer=5))).stdout
    assert [line.split()[:3] for line in text.splitlines() if line.startswith("0-4")] == [["0-4", "EdgeKV", "4/2"]]


@pytest.mark.parametrize("kind", ["lfm2", "mamba"])
def test_recurrent_layers_are_explained(synthetic, kind):
    report = json.loads(run(str(synthetic(kind)), "-o", "json").stdout)["model"]
    assert report["layers_error"] is None
    hooked = [layer["il"] for layer in report["layers"] if layer["hooked"]]
    assert hooked == {"lfm2": [1, 3], "mamba": []}[kind]


def test_bad_model(tmp_path):
    result = run(str(tmp_path / "missing.gguf"))
    assert isinstance(result.exception, ModelError)


def test_broken_libraries(monkeypatch, synthetic):
    def broken() -> dict:
        raise NativeError("libedgekv.so: cannot open shared object file")

    monkeypatch.setattr(_native, "info", broken)
    result = run(str(synthetic()))
    assert result.exit_code == EXIT_LIBRARY
    assert "CANNOT BE USED: libedgekv.so" in result.stdout and "default model" in result.stdout and "trained for" in result.stdout
    result = run("-o", "json")
    assert result.exit_code == EXIT_LIBRARY and "libedgekv" in json.loads(result.stdout)["libraries_error"]


def _nvidia_smi(folder: Path, script: str, monkeypatch) -> None:
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


LISTED = "echo 'NVIDIA H100 80GB HBM3, 81559 MiB, 550.54'"


@pytest.mark.parametrize(("script", "libcuda", "backends", "used", "said"), [
    (None, None, ["cpu"], False, "no NVIDIA driver"),
    (None, "libcuda.so.1", ["cpu"], False, "not nvidia-smi"),
    (LISTED, "libcuda.so.1", ["cpu"], False, "EDGEKV_CUDA=on"),
    (LISTED, "libcuda.so.1", ["cpu", "cuda"], True, "in use"),
    (LISTED, None, ["cpu", "cuda"], False, "libcuda is missing"),
    ("echo 'No devices were found'; exit 6", "libcuda.so.1", ["cpu", "cuda"], False, "No devices were found"),
])
def test_gpu_in_words(tmp_path, monkeypatch, script, libcuda, backends, used, said):
    if script is None:
        monkeypatch.setattr(diagnosis.shutil, "which", lambda name: None)
    else:
        _nvidia_smi(tmp_path, script, monkeypatch)
    monkeypatch.setattr(diagnosis.ctypes.util, "find_library", lambda name: libcuda)
    gpu = diagnosis._gpu(backends)
    assert gpu["used"] is used and said in gpu["reason"]
    if used:
        assert gpu["devices"] == ["NVIDIA H100 80GB HBM3, 81559 MiB, driver 550.54"]
