"""The array libraries that operations run on: NumPy, CuPy over the emulated device, and CuPy where there is a GPU."""

import importlib

import numpy as np
import pytest

from edgekv._native import device_calls
from edgekv.arrays import cupy_ops
from edgekv.arrays.ops import Ops
from edgekv.common.errors import NativeError


def real_cupy() -> Ops:
    try:
        cupy = importlib.import_module("cupy")
        cupy.cuda.runtime.getDeviceCount()
    except ImportError:
        pytest.skip("cupy is not installed")
    except Exception as error:
        pytest.skip(f"there is no GPU that cupy can use: {error}")
    try:
        cupy_ops.kernels(device_calls.folder())
    except NativeError:
        pytest.skip("this build has no GPU code")
    stream = cupy.cuda.Stream(non_blocking=True)
    ops = cupy_ops.CupyOps(0, stream.ptr, cupy.cuda.runtime.runtimeGetVersion(), device_calls.folder())
    ops.kept = stream
    return ops


def on(ops: Ops, array: np.ndarray):
    """A copy of the array where `ops` works."""
    with ops:
        return ops.upload(array.copy())


def address_of(array) -> int:
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
