"""Chooses the array operations for a context's data plane."""

from edgekv.arrays.ops import Ops
from edgekv.common.enums import DeviceKind


def choose(kind: DeviceKind = DeviceKind.HOST, index: int = 0, stream: int = 0, runtime: int = 0) -> Ops:
    """NumPy for host memory, an emulated device's included; CuPy for the CUDA device `index`, whose ubatches run on the stream at the address
    `stream`. runtime: CUDA version of the native library (13000: 13.0). Raises CudaUnavailable if CuPy is missing or cannot use the
    device."""
    if kind is not DeviceKind.CUDA:
        return Ops()
    from edgekv.arrays.cupy_ops import CupyOps

    return CupyOps(index, stream, runtime)
