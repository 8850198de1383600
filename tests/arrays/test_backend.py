"""EdgeKV chooses an array library, and says so where one is missing."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import fake_cupy

from edgekv.arrays import backend
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
    cupy = fake_cupy.put_in_place(monkeypatch, emulated_kernels, fake_cupy.Device())
    with pytest.raises(CudaUnavailable, match="GPU 3, and CuPy finds 1"):
        backend.choose(DeviceKind.CUDA, 3, 0, 13000)

    def none() -> int:
        raise fake_cupy.DeviceError("cudaErrorInsufficientDriver")

    cupy.cuda.runtime.getDeviceCount = none
    with pytest.raises(CudaUnavailable, match="InsufficientDriver"):
        backend.choose(DeviceKind.CUDA, 0, 0, 13000)


def test_kernels_that_cupy_cannot_load(emulated_kernels: Path, monkeypatch: pytest.MonkeyPatch):
    cupy = fake_cupy.put_in_place(monkeypatch, emulated_kernels, fake_cupy.Device())

    def refused(path: str) -> object:
        raise RuntimeError("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available\n  in ...")

    cupy.RawModule = refused
    with pytest.raises(CudaUnavailable, match=r'NO_BINARY_FOR_GPU.*pip install "edgekv\[cuda13\]"') as error:
        backend.choose(DeviceKind.CUDA, 0, 0, 13000)
    assert "\n" not in str(error.value)


def test_kernels_that_are_missing(emulated_kernels: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """They lie beside the libraries."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.module(emulated_kernels, fake_cupy.Device()))
    for folder in (tmp_path, None):
        with pytest.raises(NativeError, match=r"edgekv-arrays.fatbin are missing.*reinstall"):
            backend.choose(DeviceKind.CUDA, 0, 0, 13000, folder)
    (tmp_path / "edgekv-arrays.fatbin").touch()
    assert backend.choose(DeviceKind.CUDA, 0, 0, 13000, tmp_path).on_device


def test_what_needs_a_compiler_says_so(emulated_cupy):
    """cuda.pathfinder's error is a RuntimeError, and none of CUDA's."""
    ops, device = emulated_cupy
    ops.need_xp("the policy lru")
    device.compiles = False
    with pytest.raises(CudaUnavailable, match=r'^the policy lru .*libnvrtc.so.13.*pip install "edgekv\[cuda13\]"') as error:
        ops.need_xp("the policy lru")
    assert "\n" not in str(error.value) and error.value.exit_code == 5
    Ops().need_xp("the policy lru")


def test_nothing_imports_cupy():
    """The host loads no CuPy, not even where it is installed."""
    code = ("import sys, importlib, pkgutil, edgekv\n"
            "for name in ('arrays.cupy_ops', 'policies', 'tiering.prefetch', 'tiering.planner', 'tiering.step', 'tiering.device_arena', 'runtime.wiring'):\n"
            "    importlib.import_module('edgekv.' + name)\n"
            "assert 'cupy' not in sys.modules")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
