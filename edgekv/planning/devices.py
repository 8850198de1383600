"""Chooses the device of a context, and says why it is not the GPU."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from edgekv.common.enums import DeviceKind, KvMode
from edgekv.common.errors import ConfigError, CudaUnavailable, ModelError, NativeError
from edgekv.common.units import size
from edgekv.config import AUTO_DEVICE, KvOptions
from edgekv.models.geometry import ModelFile, open_model
from edgekv.models.reader import TensorInfo, open_gguf
from edgekv.planning import cublas

if TYPE_CHECKING:
    from edgekv._native.device_calls import DeviceInfo
    from edgekv.planning.device_fit import DeviceRoom

DRIVER_NEEDED = {13: 580, 12: 525}
"""Major version of CUDA: the first branch of the NVIDIA driver that runs it on Linux (CUDA toolkit release notes, under minor version
compatibility). Builds with CUDA 12 compress their kernels as that driver can read them (native/cuda/libraries.cmake)."""

_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_LIBRARIES = ("libggml-cuda.so", "libedgekv-cuda.so")


class Placement(Struct, frozen=True):
    """The place of a context's model and attention: the one decision, which everything else follows. A model with layers on the processor attends
    there in any case."""

    kind: DeviceKind
    """HOST: nothing of the model lies on a GPU, unless a person says how many layers."""
    index: int = 0
    info: DeviceInfo | None = None
    """None: the host."""
    warning: str | None = None
    """The reason why a GPU of this machine, or EdgeKV's attention on it, stays unused; tell it loudly."""
    stock: bool = False
    """Weights, K and V lie in GPU memory, and llama.cpp's own attention runs there: ours cannot."""
    others: tuple[DeviceInfo, ...] = ()
    """Further GPUs that hold a part of the model."""

    @property
    def room(self) -> DeviceRoom | None:
        """The memory of the GPUs, for `device_fit`; None: the host."""
        return None if self.info is None else room_of(self.info, *self.others)

    def in_force(self, kv: KvOptions, named: Collection[str] = ()) -> KvOptions:
        """These options, in mode off where stock attention runs. Raises ConfigError if one of the options `named` has no effect in this place."""
        if "kv_vram" in named and kv.placement.kv_vram is not None and self.kind is DeviceKind.HOST:
            raise ConfigError(f"--kv-vram is GPU memory, and attention runs on the processor ({why_no_gpu() or 'as the mode asks'}); leave it out")
        return kv.with_(mode=KvMode.OFF, kv_vram=None) if self.stock else kv


def room_of(info: DeviceInfo, *others: DeviceInfo) -> DeviceRoom:
    """The memory of a device, or of several together, for `device_fit`."""
    from edgekv.planning.device_fit import DeviceRoom

    total, free = (sum(getattr(one, name) for one in (info, *others)) for name in ("total_bytes", "free_bytes"))
    return DeviceRoom(f"{len(others) + 1} GPUs" if others else info.name, total, free, holds_model=info.kind is DeviceKind.CUDA, n_sm=info.n_sm,
                      has_display=any(one.has_display for one in (info, *others)), pins_later=info.pins_later)


def place(kv: KvOptions, model: Path | None = None) -> Placement:
    """The place for a context of these options. Of several GPUs it is the one with the most free memory, if that holds the model's weights. Raises
    CudaUnavailable if a device was asked for and cannot be used, ConfigError if the mode does not run on it."""
    asked = kv.placement.attention_device
    if kv.mode is KvMode.EVICT and asked not in (AUTO_DEVICE, DeviceKind.HOST.value):
        raise ConfigError(f"mode evict runs on the processor only, and the device is {asked}; use --attention-device cpu")
    if asked == DeviceKind.HOST.value or kv.mode is KvMode.EVICT:
        return Placement(DeviceKind.HOST)
    kind = DeviceKind.CUDA if asked == AUTO_DEVICE else DeviceKind(asked)
    found = devices(kind)
    if (lack := _lack(kind, found)) is not None:
        if asked != AUTO_DEVICE:
            raise _refused(asked, lack.why)
        return Placement(DeviceKind.HOST, warning=_unused(lack.gpu, lack.why) if lack.gpu else None)
    info, *others = (one for one in found if one.usable)
    if kv.cache.kv_dir is not None:
        raise ConfigError(f"a KV home on disk works on the processor only, and {info.name} can be used; add --attention-device cpu, or leave the home out")
    file = None if model is None else _opened(model)
    weights = file.geometry.tensor_bytes if others and file is not None else 0
    shared = tuple(others) if weights > info.free_bytes else ()
    placed = Placement(kind, info.index, info, others=shared)
    if file is not None and (why := _unmultiplied(placed, file.geometry.path, file.tensors)) is not None:
        if asked != AUTO_DEVICE:
            raise _refused(asked, why)
        return Placement(DeviceKind.HOST, warning=_unused(info.name, why))
    if kv.mode is KvMode.OFF or kind is not DeviceKind.CUDA:
        return placed
    why = f"the weights ({size(weights)}) fit on none of {len(shared) + 1} GPUs alone, and it serves models on one" if shared else _cupy_problem(info)
    if why is None:
        return placed
    if asked != AUTO_DEVICE:
        raise _refused(asked, why)
    return replace(placed, stock=True, warning=f"EDGEKV'S ATTENTION DOES NOT RUN ON THE GPU ({info.name}): {why}; llama.cpp's runs there instead (mode off), "
                   f"with K and V in GPU memory; {_QUIET}")


_QUIET = "--attention-device cpu runs without it and without this warning"


def _unused(gpu: str, why: str) -> str:
    return f"THE GPU IS NOT USED ({gpu}): {why}; {_QUIET}"


def _opened(model: Path) -> ModelFile | None:
    """None for a file that is no model, which llama.cpp judges."""
    try:
        return open_model(model, whole=False)
    except ModelError:
        return None


def check_beside(placement: Placement, path: Path) -> None:
    """Raise CudaUnavailable if the GPUs of a placement cannot compute with a file that is loaded after the model, ModelError if it is no GGUF file."""
    if placement.info is not None and (why := _unmultiplied(placement, path, open_gguf(path, whole=False).tensor_infos)) is not None:
        raise _refused(placement.kind.value, why)


def check_plain_attention(placement: Placement) -> None:
    """Raise CudaUnavailable if the GPUs of a placement cannot attend without flash attention, whose products of F16 matrices need cuBLAS."""
    if placement.kind is DeviceKind.CUDA and (why := cublas_problem()) is not None:
        raise _refused(placement.kind.value, f"attention without flash attention multiplies by cuBLAS, and {why}")


def cublas_problem() -> str | None:
    """Why cuBLAS cannot be opened, as a clause; None: it can, or this build has no CUDA code."""
    from edgekv._native.libraries import cublas_problem

    folder = _folder()
    return None if folder is None else cublas_problem(folder / _LIBRARIES[0])


def _unmultiplied(placement: Placement, path: Path, tensors: Sequence[TensorInfo]) -> str | None:
    """Why the GPUs of a placement cannot compute with a file's matrices, as a clause; None: they can. Opens cuBLAS only if one needs it."""
    if placement.info is None or placement.kind is not DeviceKind.CUDA:
        return None
    found = cublas.matrix(tensors, min(info.arch for info in (placement.info, *placement.others)))
    if found is None or (why := cublas_problem()) is None:
        return None
    return f"{path.name} has {found.name} in {found.type}, which llama.cpp multiplies by cuBLAS, and {why}"


def _refused(device: str, why: str) -> CudaUnavailable:
    return CudaUnavailable(f"device {device} cannot be used: {why}; use --attention-device cpu to run without it")


def measured_mode(placement: Placement) -> KvMode:
    """The mode where none was asked for: sparse on processors with AVX2, where it measured nearer to full attention than stock, and several
    times as fast; exact elsewhere, also with NEON, which was only emulated; but see `device_mode.chosen_mode`."""
    from edgekv import _native

    if placement.stock:
        return KvMode.OFF
    measured = _native.isa() not in ("portable", "neon")
    return KvMode.SPARSE if measured and placement.kind is DeviceKind.HOST else KvMode.EXACT


def devices(kind: DeviceKind) -> list[DeviceInfo]:
    """All devices of a kind that this build can see: the usable ones first, and the one with the most free memory first of these."""
    native = native_devices()
    if native is None:
        return []
    found = [native.info(kind, index) for index in range(native.count(kind))]
    return sorted(found, key=lambda info: (not info.usable, -info.free_bytes))


def native_devices() -> Any | None:
    """The module that asks libedgekv about devices; None if the library cannot be loaded (others report that)."""
    try:
        return import_module("edgekv._native.device_calls")
    except (ImportError, OSError, NativeError):
        return None


def why_no_gpu(kind: DeviceKind = DeviceKind.CUDA) -> str | None:
    """The reason why attention cannot run on a GPU here, as a clause; None: it can."""
    found = devices(kind)
    if (lack := _lack(kind, found)) is not None:
        return lack.why
    return _cupy_problem(found[0]) if kind is DeviceKind.CUDA else None


class _Lack(NamedTuple):
    """Why no device of a kind can be used, not even by stock llama.cpp, as a clause; and the GPU that is there all the same."""

    why: str
    gpu: str | None


def _lack(kind: DeviceKind, found: list[DeviceInfo]) -> _Lack | None:
    """None: the first of these devices, which are all of the kind, can be used."""
    if found:
        first = found[0]
        why = first.problem if not first.usable else library_problem() if kind is DeviceKind.CUDA else None
        return _Lack(why, first.name) if why else None
    if kind is DeviceKind.EMULATED:
        return _Lack("the emulated device is not part of the package; build native/emulator and name its libedgekv-emulated in EDGEKV_EMULATOR", None)
    seen, problem = nvidia_gpus()
    return _Lack(_unseen(seen[0]), seen[0]) if seen else _Lack(problem, None)


def _unseen(seen: str) -> str:
    """The reason why CUDA has no device although `nvidia_gpus` lists this one."""
    if has_cuda_build():
        return library_problem() or _driver_problem(seen)
    if (problem := plugin_problem()) is not None:
        return problem
    cuda = next((cuda for cuda, driver in DRIVER_NEEDED.items() if _branch(seen) >= driver), min(DRIVER_NEEDED))
    if _has_plugin(cuda):
        return f'this build of EdgeKV has no CUDA code; pip install "edgekv[cuda{cuda}]" brings it'
    return f'this build of EdgeKV has no CUDA code; in a checkout, pip install ".[cuda{cuda}]" builds it with the CUDA toolkit and EDGEKV_CUDA=on'


def _has_plugin(cuda: int) -> bool:
    """Whether this package's extra for a CUDA version brings a plug-in with the libraries: only the wheel for people has such extras (.ci/wheel)."""
    from importlib import metadata

    try:
        needs = metadata.requires("edgekv") or []
    except metadata.PackageNotFoundError:
        return False
    return any(need.startswith(f"edgekv-cuda{cuda}") for need in needs)


def plugin_problem() -> str | None:
    """The reason why a plug-in with CUDA code is refused, as a clause; None: there is none, or it is used."""
    native = native_devices()
    return None if native is None else native.plugin_problem()


def library_problem() -> str | None:
    """Why the libraries of a CUDA build cannot be opened, as a clause; None: they can, or this build has none."""
    from edgekv._native.libraries import load_problem

    folder = _folder()
    problem = None if folder is None else next(filter(None, (load_problem(str(folder / name)) for name in _LIBRARIES)), None)
    if problem is None:
        return None
    return (f"{problem}, and this build needs CUDA's libraries; install those of its version (pip install nvidia-cuda-runtime nvidia-cublas, for "
            "CUDA 12 nvidia-cuda-runtime-cu12 nvidia-cublas-cu12), or name the folder of a toolkit in LD_LIBRARY_PATH")


def _driver_problem(seen: str) -> str:
    """The reason why CUDA finds no GPU although the build and a GPU are there."""
    if _branch(seen) < max(DRIVER_NEEDED.values()):
        version = seen.rpartition("driver ")[2]
        needed = ", ".join(f"CUDA {cuda} needs {driver} or newer" for cuda, driver in DRIVER_NEEDED.items())
        return f"the NVIDIA driver {version} is too old for this build ({needed}); update it"
    return f"nvidia-smi lists {seen}, and CUDA does not find it; look at CUDA_VISIBLE_DEVICES, and at the container's access to it"


def _branch(seen: str) -> int:
    """The branch of the driver of a GPU that `nvidia_gpus` lists; 0: unknown."""
    branch = seen.rpartition("driver ")[2].partition(".")[0]
    return int(branch) if branch.isdigit() else 0


def _cupy_problem(info: DeviceInfo) -> str | None:
    """The reason why CuPy cannot run our kernels on this device, as a clause; None: it can."""
    if not cupy_version():
        return f"CuPy is not installed; {cupy_install(info)}"
    from edgekv.arrays import backend  # which brings NumPy

    return backend.problem(info.index, info.runtime, _folder())


def cupy_install(info: DeviceInfo | None) -> str:
    """The command that installs the CuPy for a device."""
    from edgekv.arrays import backend

    return backend.install(13000 if info is None else info.runtime)


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
    """Whether this installation has the data plane for NVIDIA GPUs: its build, or a plug-in."""
    return _folder() is not None


def _folder() -> Path | None:
    native = native_devices()
    return None if native is None else native.folder()


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
    import subprocess  # which a machine without a card needs not

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
