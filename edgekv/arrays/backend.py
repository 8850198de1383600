"""Chooses the array operations for a context's data plane."""

from functools import cache
from pathlib import Path

from edgekv.arrays.ops import Ops
from edgekv.common.enums import DeviceKind
from edgekv.common.errors import EdgeKVError


def choose(kind: DeviceKind = DeviceKind.HOST, index: int = 0, stream: int = 0, runtime: int = 0, folder: Path | None = None) -> Ops:
    """NumPy for host memory, an emulated device's included; CuPy for the CUDA device `index`, whose ubatches run on the stream at the address
    `stream`. runtime: CUDA version of the native library (13000: 13.0), which lies in `folder`. Raises CudaUnavailable if CuPy is missing or
    cannot use the device, NativeError if the folder has no kernels for it."""
    if kind is not DeviceKind.CUDA:
        return Ops()
    from edgekv.arrays.cupy_ops import CupyOps

    return CupyOps(index, stream, runtime, folder)


@cache
def problem(index: int, runtime: int, folder: Path | None) -> str | None:
    """The reason why `choose` fails for the CUDA device `index`; None: it does not. It loads CuPy and our kernels."""
    try:
        choose(DeviceKind.CUDA, index, 0, runtime, folder)
    except EdgeKVError as error:
        return str(error)
    return None


def install(runtime: int) -> str:
    """The command that installs the CuPy for a CUDA version, and what it needs."""
    return f'pip install "edgekv[cuda{13 if runtime >= 13000 else 12}]"'
