"""Devices, their rates, and the place of a context's data plane, as plain values."""

from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, structs

from edgekv._native._core import ffi, lib
from edgekv._native.core import _DEVICES, Handle, _check
from edgekv.common.enums import DeviceKind
from edgekv.common.json_file import Rate

_KIND_OF = {number: kind for kind, number in _DEVICES.items()}


def _address(pointer) -> int:
    return int(ffi.cast("uintptr_t", pointer))


# ---- devices --------------------------------------------------------------------------------------------------------------------


class DeviceInfo(Struct, frozen=True):
    """One device of this machine."""

    kind: DeviceKind
    index: int
    name: str
    arch: int
    """89: compute capability 8.9."""
    driver: int
    """The newest CUDA version that the driver supports, 13000: 13.0; `runtime`: that of our build."""
    runtime: int
    n_sm: int
    total_bytes: int
    free_bytes: int
    usable: bool
    problem: str
    """The reason if it is not usable."""
    has_display: bool = False
    """It may draw a screen."""
    pins_later: bool = False
    """Its kernels read memory in place that was mapped first and pinned later."""


def folder() -> Path | None:
    """The folder of the libraries for NVIDIA's GPUs: the package's own, or that of a plug-in of the same sources; None: there are none."""
    path = ffi.string(lib.edgekv_device_folder()).decode()
    return Path(path).resolve() if path else None


def plugin_problem() -> str | None:
    """The reason why a plug-in beside the package is refused, as a clause; None: none is."""
    return ffi.string(lib.edgekv_plugin_problem()).decode() or None


def count(kind: DeviceKind) -> int:
    """Devices of a kind; 0 if this build has no library for it."""
    return lib.edgekv_device_count(_DEVICES[kind])


def info(kind: DeviceKind, index: int = 0) -> DeviceInfo:
    """One device. Raises NativeError or ConfigError if there is none."""
    out = ffi.new("edgekv_device_info *")
    _check(lib.edgekv_get_device_info(_DEVICES[kind], index, out))
    return DeviceInfo(_KIND_OF[out.kind], out.index, ffi.string(out.name).decode(), out.arch, out.driver, out.runtime, out.n_sm,
                      out.total_bytes, out.free_bytes, bool(out.usable), ffi.string(out.problem).decode(), bool(out.has_display), bool(out.pins_later))


def pins(kind: DeviceKind, index: int, n_bytes: int) -> bool:
    """Whether the system pins so much host memory for a device now. It takes as long as that takes, seconds for gigabytes."""
    return lib.edgekv_try_pinning(_DEVICES[kind], index, n_bytes) == lib.EDGEKV_OK


def pinning(kind: DeviceKind, index: int, n_bytes: int) -> Any:
    """Pin two parts of `n_bytes` each, a multiple of the system's page, and give them back: an edgekv_pinning. Raises NativeError where the system does not."""
    out = ffi.new("edgekv_pinning *")
    _check(lib.edgekv_time_pinning(_DEVICES[kind], index, n_bytes, out))
    return out


class Rates(Struct, frozen=True, forbid_unknown_fields=True):
    """Measured rates of a device, in bytes per second."""

    link_copy: Rate
    """Pinned host memory to the device, in one large copy."""
    link_gather: Rate
    """The same page by page, by a kernel that reads host memory in place."""
    link_rows: Rate
    """The same row by row: rows of 128 to 272 bytes, of the slowest size."""
    link_pageable: Rate
    """One large copy from memory that is not pinned."""
    vram: Rate
    """Device memory, read."""
    dram: Rate
    """Host memory, read by the processor."""
    launch_us: Rate
    """Microseconds from launch to launch."""


def rates(kind: DeviceKind, index: int = 0, host_bytes: int = 0) -> Rates:
    """Measure a device; takes some seconds. host_bytes: host memory that may be pinned meanwhile, so that pages and rows lie as far apart as in a
    home. Raises NativeError where it cannot be used."""
    out = ffi.new("edgekv_rates *")
    _check(lib.edgekv_measure_rates(_DEVICES[kind], index, host_bytes, out))
    return Rates(out.link_copy, out.link_gather, out.link_rows, out.link_pageable, out.vram, out.dram, out.launch_us)


class KernelCase(Struct, frozen=True):
    """Heads, tokens that attend (16 at most), cells, and types of K and V (`enum ggml_type`)."""

    head_dim: int
    n_head: int
    n_head_kv: int
    n_tokens: int
    n_cells: int
    type_k: int
    type_v: int
    seed: int = 1


class KernelResult(NamedTuple):
    error: float
    """The largest, in units of what is allowed: 1 and less is right."""
    same: bool
    """Three runs gave the same bits."""
    inside: bool
    """Nothing was written beside a buffer."""


KERNELS = {"attend": lib.EDGEKV_KERNEL_ATTEND, "attend lists": lib.EDGEKV_KERNEL_ATTEND_LISTS, "store": lib.EDGEKV_KERNEL_STORE,
           "scan": lib.EDGEKV_KERNEL_SCAN}
"""Our kernels that `try_kernel` compares: the attention over pages and over lists, with the merge; the store with sketches; their scan."""


def try_kernel(kind: DeviceKind, index: int, kernel: str, case: KernelCase) -> KernelResult:
    """Run one of `KERNELS` three times on random inputs and compare it with the reference of the processor's kernels. Raises ConfigError for heads
    that no kernel serves, NativeError where a launch failed."""
    out = ffi.new("edgekv_kernel_result *")
    _check(lib.edgekv_try_kernel(_DEVICES[kind], index, KERNELS[kernel], ffi.new("edgekv_kernel_case *", structs.asdict(case)), out))
    return KernelResult(out.error, bool(out.same), bool(out.inside))


def sources() -> str:
    """Digest of all native sources that compute."""
    return ffi.string(lib.edgekv_sources()).decode()


# ---- the plane of a context -----------------------------------------------------------------------------------------------------


class Plane(Struct, frozen=True):
    """The device of a context's data plane. Addresses are the device's: of an emulated one, host memory."""

    kind: DeviceKind
    index: int
    stream: int
    """Address of the stream that ubatches run on."""
    arena: int
    slot_bytes: int
    n_slots: int
    n_slots_max: int
    n_cells: int
    """Cells of a stream."""
    layers: int
    """Address of one edgekv_device_layer for each layer (`edgekv.arrays.move.LAYER`)."""
    budget_bytes: int
    fixed_bytes: int
    """The fixed part of it: sketches, tables, observation, and `staging_bytes` for prompts."""
    staging_bytes: int

    @property
    def runtime(self) -> int:
        """CUDA version of the native library, 13000: 13.0."""
        return info(self.kind, self.index).runtime


def plane(handle: Handle) -> Plane | None:
    """The device that a context's data plane runs on; None: the host."""
    out = ffi.new("edgekv_device *")
    if not lib.edgekv_get_device(handle, out):
        return None
    return Plane(_KIND_OF[out.kind], out.index, _address(out.stream), _address(out.arena), out.slot_bytes, out.n_slots,
                 out.n_slots_max, out.n_cells, _address(out.layers), out.budget_bytes, out.fixed_bytes, out.staging_bytes)
