"""Chooses the device of a context, and says why it is not the GPU."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import ConfigError, CudaUnavailable, NativeError
from edgekv.config import AUTO_DEVICE, KvOptions
from edgekv.planning.device_fit import DeviceRoom

if TYPE_CHECKING:
    from edgekv._native.device_calls import DeviceInfo

DRIVER_NEEDED = {13: 580, 12: 525}
"""Major version of CUDA: the first branch of the NVIDIA driver that runs it on Linux (CUDA toolkit release notes, under minor version
compatibility). Builds with CUDA 12 compress their kernels as that driver can read them (native/cuda/libraries.cmake)."""

_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_PLANE = "libedgekv-cuda"
_LIBRARIES = ("libggml-cuda.so", "libedgekv-cuda.so")


@dataclass(frozen=True)
class Placement:
    """The wanted place of a context's attention. A model with layers on the processor runs there in any case."""

    kind: DeviceKind
    index: int = 0
    info: DeviceInfo | None = None
    """None: the host."""
    warning: str | None = None
    """The reason why a GPU of this machine stays unused; tell it loudly."""

    @property
    def room(self) -> DeviceRoom | None:
        """The device's memory, for `device_fit`; None: the host."""
        return None if self.info is None else room_of(self.info)


def room_of(info: DeviceInfo) -> DeviceRoom:
    """The memory of a device, for `device_fit`."""
    return DeviceRoom(info.name, info.total_bytes, info.free_bytes, holds_model=info.kind is DeviceKind.CUDA, n_sm=info.n_sm)


def place(kv: KvOptions) -> Placement:
    """The device for a context of these options. Raises CudaUnavailable if a device was asked for and cannot be used, ConfigError if the
    mode does not run on it."""
    if kv.mode is KvMode.EVICT and kv.placement.attention_device not in (AUTO_DEVICE, DeviceKind.HOST.value):
        raise ConfigError(f"mode evict runs on the processor only, and the device is {kv.placement.attention_device}; use --attention-device cpu")
    if kv.placement.attention_device == DeviceKind.HOST.value or kv.mode is KvMode.EVICT:
        return Placement(DeviceKind.HOST)
    kind = DeviceKind.CUDA if kv.placement.attention_device == AUTO_DEVICE else DeviceKind(kv.placement.attention_device)
    found = devices(kind)
    listed = nvidia_gpus() if kind is DeviceKind.CUDA and not found else ([], "")
    why = _why_not(kind, found, listed, needs_cupy=kv.mode is not KvMode.OFF)
    if why is None and kv.cache.kv_dir is not None:
        raise ConfigError(f"a KV home on disk works on the processor only, and {found[0].name} can be used; add --attention-device cpu, or leave the home out")
    if why is None:
        return Placement(kind, found[0].index, found[0])
    if kv.placement.attention_device != AUTO_DEVICE:
        raise CudaUnavailable(f"device {kv.placement.attention_device} cannot be used: {why}; use --attention-device cpu to run without it")
    seen = found[0].name if found else next(iter(listed[0]), None)
    warning = f"THE GPU IS NOT USED ({seen}): {why}; --attention-device cpu runs without it and without this warning" if seen else None
    return Placement(DeviceKind.HOST, warning=warning)


def measured_mode(placement: Placement) -> KvMode:
    """The mode where none was asked for: sparse on processors with AVX2, where it measured nearer to full attention than stock, and several
    times as fast; exact elsewhere, also with NEON, which was only emulated; but see `device_mode.chosen_mode`."""
    from edgekv import _native

    measured = _native.isa() not in ("portable", "neon")
    return KvMode.SPARSE if measured and placement.kind is DeviceKind.HOST else KvMode.EXACT


def devices(kind: DeviceKind) -> list[DeviceInfo]:
    """All devices of a kind that this build can see, the usable ones first."""
    native = native_devices()
    if native is None:
        return []
    found = [native.info(kind, index) for index in range(native.count(kind))]
    return sorted(found, key=lambda info: not info.usable)


def native_devices() -> Any | None:
    """The module that asks libedgekv about devices; None if the library cannot be loaded (others report that)."""
    try:
        return import_module("edgekv._native.device_calls")
    except (ImportError, OSError, NativeError):
        return None


def why_no_gpu() -> str | None:
    """The reason why attention cannot run on a GPU here, as a clause; None: it can."""
    return _why_not(DeviceKind.CUDA, devices(DeviceKind.CUDA), nvidia_gpus(), needs_cupy=True)


def _why_not(kind: DeviceKind, found: list[DeviceInfo], listed: tuple[list[str], str], needs_cupy: bool) -> str | None:
    """`why_no_gpu` for a kind. found: its devices; listed: `nvidia_gpus()`, which counts if none was found."""
    if kind is DeviceKind.EMULATED:
        return None if found else "the emulated device is not part of the package; build native/emulator and name its libedgekv-emulated in EDGEKV_EMULATOR"
    if found and not found[0].usable:
        return found[0].problem
    if found:
        return library_problem() or (_cupy_problem(found[0]) if needs_cupy else None)
    seen, problem = listed
    if not seen:
        return problem
    if not has_cuda_build():
        return "this build of EdgeKV has no CUDA code; install it again with EDGEKV_CUDA=on"
    return library_problem() or _driver_problem(seen[0])


def library_problem() -> str | None:
    """Why the libraries of a CUDA build cannot be opened, as a clause; None: they can, or this build has none."""
    from edgekv import _native
    from edgekv._native.libraries import load_problem

    problems = (load_problem(str(path)) for path in map(_native.lib_dir().joinpath, _LIBRARIES) if path.exists())
    problem = next(filter(None, problems), None)
    if problem is None:
        return None
    return (f"{problem}, and this build needs CUDA's libraries; install those of its version (pip install nvidia-cuda-runtime nvidia-cublas, for "
            "CUDA 12 nvidia-cuda-runtime-cu12 nvidia-cublas-cu12), or name the folder of a toolkit in LD_LIBRARY_PATH")


def _driver_problem(seen: str) -> str:
    """The reason why CUDA finds no GPU although the build and a GPU are there."""
    version = seen.rpartition("driver ")[2]
    branch = int(version.partition(".")[0]) if version.partition(".")[0].isdigit() else 0
    if branch < max(DRIVER_NEEDED.values()):
        needed = ", ".join(f"CUDA {cuda} needs {driver} or newer" for cuda, driver in DRIVER_NEEDED.items())
        return f"the NVIDIA driver {version} is too old for this build ({needed}); update it"
    return f"nvidia-smi lists {seen}, and CUDA does not find it; look at CUDA_VISIBLE_DEVICES, and at the container's access to it"


def _cupy_problem(info: DeviceInfo) -> str | None:
    return None if cupy_version() else f"CuPy is not installed; {cupy_install(info)}"


def cupy_install(info: DeviceInfo | None) -> str:
    """The command that installs the CuPy for a device."""
    return f"pip install \"edgekv[cuda{'12' if info is not None and info.runtime < 13000 else '13'}]\""


def cupy_version() -> str | None:
    """Version of the installed CuPy, without importing it; None: not installed."""
    if importlib.util.find_spec("cupy") is None:
        return None
    from importlib import metadata

    for name in _CUPY:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def has_cuda_build() -> bool:
    """Whether this build has the data plane for NVIDIA GPUs. Raises NativeError if the libraries are missing."""
    from edgekv import _native

    return any(path.name.startswith(_PLANE) for path in _native.lib_dir().iterdir())


def has_cuda_driver() -> bool:
    """Whether the NVIDIA driver's libcuda can be loaded."""
    from edgekv._native.libraries import can_load

    return can_load("libcuda.so.1")


def nvidia_gpus() -> tuple[list[str], str]:
    """The GPUs that the NVIDIA driver lists, as "name, memory, driver version"; if it lists none, a clause with the reason."""
    command = shutil.which("nvidia-smi")
    driver = has_cuda_driver()
    if command is None:
        if not driver:
            return [], "no NVIDIA driver is installed (neither nvidia-smi nor libcuda is there)"
        return [], "libcuda is there, but not nvidia-smi, which tells the GPUs"
    try:
        query = [command, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        result = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi does not answer ({error})"
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    if result.returncode != 0 or not lines:
        said = (result.stderr.strip() or result.stdout.strip() or "it lists no GPU").splitlines()[0]
        return [], f"nvidia-smi finds no GPU: {said}"
    if not driver:
        return [], f"nvidia-smi lists {lines[0]}, but the driver library libcuda is missing"
    return [f"{name}, {memory}, driver {version}" for name, memory, version in (line.split(", ") for line in lines)], ""
