"""EdgeKV chooses an array library, and says so where one is missing."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import fake_cupy

from edgekv.arrays import backend, cupy_ops
from edgekv.arrays.ops import Ops
from edgekv.common.enums import DeviceKind
from edgekv.common.errors import CudaUnavailable, NativeError


def test_the_backend_is_chosen_by_kind():
    assert type(backend.choose()) is Ops and type(backend.choose(DeviceKind.EMULATED)) is Ops


@pytest.mark.parametrize("runtime, extra", [(12080, "cuda12"), (13000, "cuda13")])
def test_without_cupy(monkeypatch: pytest.MonkeyPatch, runtime: int, extra: str):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(CudaUnavailable, match=rf'pip install "edgekv\[{extra}\]"') as error:
        backend.choose(DeviceKind.CUDA, 0, 0, runtime)
    assert error.value.exit_code == 5 and "\n" not in str(error.value)


def test_cupy_without_a_device(emulated_kernels: Path, monkeypatch: pytest.MonkeyPatch):
    cupy = fake_cupy.module(emulated_kernels, fake_cupy.Device())
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(CudaUnavailable, match="GPU 3, and CuPy finds 1"):
        backend.choose(DeviceKind.CUDA, 3, 0, 13000)

    def none() -> int:
        raise fake_cupy.DeviceError("cudaErrorInsufficientDriver")

    cupy.cuda.runtime.getDeviceCount = none
    with pytest.raises(CudaUnavailable, match="InsufficientDriver"):
        backend.choose(DeviceKind.CUDA, 0, 0, 13000)


def test_cupy_without_its_compiler(emulated_kernels: Path, monkeypatch: pytest.MonkeyPatch):
    """cuda.pathfinder's error is a RuntimeError, and none of CUDA's."""
    cupy = fake_cupy.module(emulated_kernels, fake_cupy.Device())

    def uncompiled(code: str, options: tuple) -> object:
        raise RuntimeError('Failure finding "libnvrtc.so.13": No such file\n  searched in: ...')

    cupy.RawModule = uncompiled
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(CudaUnavailable, match=r'libnvrtc.so.13.*pip install "edgekv\[cuda13\]"') as error:
        backend.choose(DeviceKind.CUDA, 0, 0, 13000)
    assert "\n" not in str(error.value)


def test_a_kernel_source_that_is_missing():
    with pytest.raises(NativeError, match="reinstall"):
        cupy_ops.source("nothing.cuh")


def test_nothing_imports_cupy():
    """The host loads no CuPy, not even where it is installed."""
    code = ("import sys, importlib, pkgutil, edgekv\n"
            "for name in ('arrays.cupy_ops', 'policies', 'tiering.prefetch', 'tiering.planner', 'tiering.step', 'tiering.device_arena', 'runtime.wiring'):\n"
            "    importlib.import_module('edgekv.' + name)\n"
            "assert 'cupy' not in sys.modules")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def nvrtc() -> Iterator[object]:
    try:
        yield importlib.import_module("cupy").cuda.nvrtc
    except ImportError:
        pytest.skip("cupy is not installed")


@pytest.mark.parametrize("arch", [80, 86, 89, 90, 120])
@pytest.mark.parametrize("name", ["scores.cuh", "move_pages.cuh"])
def test_nvrtc_compiles_the_sources(nvrtc, name: str, arch: int):
    try:
        program = nvrtc.createProgram(cupy_ops.source(name), name, [], [])
    except (OSError, RuntimeError) as error:
        pytest.skip(f"NVRTC cannot be loaded: {error}")
    nvrtc.compileProgram(program, ["--std=c++17", f"-arch=sm_{arch}"])
    assert nvrtc.getCUBIN(program)
