"""What this machine has: card, driver, link, libraries by their paths, CuPy, memory that can be pinned, and how that goes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module

from edgekv import _native
from edgekv._native import device_calls
from edgekv.common.enums import DeviceKind
from edgekv.common.errors import EdgeKVError
from edgekv.common.units import size
from edgekv.diagnosis import pinned
from edgekv.planning import devices
from edgekv.proof.steps import Outcome, Part, Told

_OF_DEVICES = ("cuda", "cublas", "nvrtc", "nccl", "edgekv-emulated")

PART_BYTES, PART_BYTES_EMULATED = 64 << 20, 1 << 20
"""Of host memory that is pinned at a time."""


def run(part: Part) -> Iterator[Told]:
    info = device_calls.info(DeviceKind(part.kind), part.index)
    free = f"{size(info.free_bytes)} of {size(info.total_bytes)} free"
    code = f", compute capability {info.arch // 10}.{info.arch % 10}, {info.n_sm} multiprocessors" if info.arch else ""
    yield "card", Outcome.TOLD, f"{info.name}{code}; {free}"
    if info.kind is DeviceKind.CUDA:
        yield "driver", Outcome.TOLD, f"for CUDA {_version(info.driver)}; this build is of CUDA {_version(info.runtime)}"
        yield "PCIe", Outcome.TOLD, _pcie()
        yield _cupy(info)
    for path in _opened():
        yield "library", Outcome.TOLD, path
    kept = pinned()
    limit = "no limit" if kept["limit"] is None else size(kept["limit"])
    yield "pinned memory", Outcome.TOLD, f"up to {size(kept['available'] or 0)}, what is free; locked memory (ulimit -l): {limit}"
    yield from _pinned_later(info)


def _pinned_later(info: device_calls.DeviceInfo) -> Iterator[Told]:
    """Pinning as tokens come: whether the card says that it can, and what one part takes."""
    at_start = "are pinned at the start: the driver cannot read memory under its own address that is pinned later"
    yield "K and V", Outcome.TOLD, "can be pinned as tokens come" if info.pins_later else at_start
    n_bytes = PART_BYTES if info.kind is DeviceKind.CUDA else PART_BYTES_EMULATED
    try:
        found = device_calls.pinning(info.kind, info.index, n_bytes)
    except EdgeKVError as error:
        yield "a part", Outcome.TOLD, f"is not pinned: {error}"
        return
    meaning = "" if info.kind is DeviceKind.CUDA else "; of an emulated device times mean nothing"
    outcome = Outcome.WRONG if info.pins_later and not found.works else Outcome.TOLD
    yield "a part", outcome, (
        f"{size(n_bytes)} pinned in {found.fresh_ms:.1f} ms, or {found.touched_ms:.1f} ms if it was written before, given back in {found.unpin_ms:.1f} ms; "
        f"kernels {'reach' if found.works else 'cannot reach'} it under the host's address{meaning}")
    yield "a part, beside", Outcome.TOLD, f"pinned in {found.beside_ms:.1f} ms while a stream worked for {found.busy_ms:.1f} ms{meaning}"
    yield "two parts", Outcome.TOLD, f"a copy {'may' if found.crosses else 'must not'} go from one into the next"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _pcie() -> str:
    """As nvidia-smi tells it; an idle card's link may run slower than it can."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return "nvidia-smi is not there, which tells it"
    fields = "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max"
    done = subprocess.run([command, f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True, text=True, timeout=20, check=False)
    return "; ".join(f"generation {now} of {most}, {wide} of {widest} lanes" for now, most, wide, widest in (
        line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 3)) or "nvidia-smi does not tell it"


def _cupy(info: device_calls.DeviceInfo) -> Told:
    """It loads our kernels, and compiles what some policies use, with NVRTC."""
    try:
        cupy = import_module("cupy")
    except Exception as error:  # CuPy's libraries fail in many ways
        return "CuPy", Outcome.WRONG, f"{type(error).__name__}: {error}; {devices.cupy_install(info)}"
    try:
        compiler = f"NVRTC {'.'.join(map(str, cupy.cuda.nvrtc.getVersion()))}"
    except Exception:
        compiler = "no NVRTC, which policies other than ema, anchor and recent need"
    return "CuPy", Outcome.TOLD, f"{cupy.__version__}, {compiler}, {cupy.__file__}"


def _opened() -> list[str]:
    """Paths of the libraries of devices that this process has opened, and of ours."""
    ours = [path for name, path in _native.info()["libraries"].items() if "edgekv" in name]
    with open("/proc/self/maps", encoding="utf-8") as maps:
        seen = {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
    return sorted({*ours, *(path for path in seen if any(f"lib{name}" in path or f"lib{name}" in path.replace("ggml-", "") for name in _OF_DEVICES))})
