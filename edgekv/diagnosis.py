"""The facts behind `edgekv doctor`: this installation, and its plans for a model."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs, to_builtins

from edgekv.common import machine
from edgekv.common.enums import CacheType, DeviceKind, KvMode
from edgekv.common.errors import DoesNotFit, EdgeKVError, ModelError, NativeError
from edgekv.planning import devices

if TYPE_CHECKING:
    from edgekv.models import Geometry

N_CTX = 512  # of the context that is opened to see which layers are hooked

CONTEXTS = (1, 4)
"""Multiples of a model's trained context that device plans are made for."""


def diagnose(model: Path | None = None, recalibrate: bool = False) -> dict[str, Any]:
    """The report, ready for JSON. `libraries_error` and `default_model_error` are sentences, or None.

    model: adds its geometry, KV bytes, layers and device plans under `model`. recalibrate: measure the rates of devices again. Raises
    ModelError if the file is not a model that can chat.
    """
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": {"name": machine.cpu_name(), "family": machine.cpu_family(), "cores": os.cpu_count()},
        "date": machine.stamp()["date"],
    }
    report |= _libraries()
    report |= _weights() if report["libraries_error"] is None else {"weights": None, "weights_left": None}
    report["gpu"] = _gpu(report["backends"])
    report["devices"] = _devices(recalibrate) if report["backends"] is not None else []
    report |= _default_model()
    if model is not None:
        report["model"] = _model(model, usable=report["libraries_error"] is None)
    return report


def _libraries() -> dict[str, Any]:
    keys = ("version", "upstream", "llama_cpp_python", "enabled", "isa", "isa_available", "system", "libraries")
    try:
        from edgekv import _native

        info = _native.info()
    except (NativeError, ImportError, OSError, RuntimeError) as error:  # llama_cpp raises the last three for libraries that it cannot load
        return {**dict.fromkeys(keys), "backends": None, "built_for": None, "libraries_error": str(error)}
    built = _built(info["libraries"])
    return {**{key: info[key] for key in keys}, "backends": sorted({name.partition("-")[0] for name in built}),
            "built_for": sorted(name.partition("-")[2] for name in built if name.startswith("cpu-")), "libraries_error": None}


def _weights() -> dict[str, Any]:
    """weights: each type of quantised weights, with the fast kernels that it has on this processor: "EDGEKV": ours; the name of
    a layout: llama.cpp's special kernels for it; None: none, and such types come last. Plain floats are left out: a layout does not make
    them faster. weights_left: products that llama.cpp's kernels make, because a measurement on this machine, with a model that has such weights,
    found ours slower."""
    from edgekv._native import weight_kernels, weight_types

    layouts = weight_types.layouts()
    found = {name: "EDGEKV" if weight_types.multiplied_by_us(name, layout) else layout
             for name, layout in layouts.items() if name not in ("F16", "BF16")}
    kinds = [weight_kernels.Kind(name, layout) for name, own in layouts.items() for layout in dict.fromkeys((own, None))
             if weight_types.multiplied_by_us(name, layout)]
    return {"weights": dict(sorted(found.items(), key=lambda item: item[1] is None)),
            "weights_left": [{"type": kind.name, "layout": kind.layout, "tokens": tokens}
                             for kind, tokens in weight_kernels.left_to_llama_cpp(kinds)]}


def _built(libraries: dict[str, str]) -> set[str]:
    """The ggml backends among the libraries: "cpu", or with EDGEKV_CPU=all "cpu-haswell" and so on; "cuda"."""
    return {name.partition(".")[0].removeprefix("lib").removeprefix("ggml-") for name in libraries if "ggml-" in name} - {"base"}


def _default_model() -> dict[str, Any]:
    from edgekv.models import default_model

    try:
        return {"default_model": str(default_model()), "default_model_error": None}
    except ModelError as error:
        return {"default_model": None, "default_model_error": str(error)}


def _gpu(backends: list[str] | None) -> dict[str, Any]:
    """The NVIDIA GPUs, whether they are used, and a sentence that says why not. backends: None: the libraries cannot be used."""
    listed, problem = devices.nvidia_gpus()
    if backends is None:
        problem = problem or "EdgeKV's libraries cannot be used"
    elif (why := devices.why_no_gpu()) is not None:
        problem = why
    elif "cuda" not in backends:
        problem = "this build of llama.cpp has no CUDA backend; install it again with EDGEKV_CUDA=on"
    else:
        problem = ""
    return {
        "devices": listed,
        "used": not problem,
        "reason": f"not used: {problem}" if problem else "in use",
        "device_library": backends is not None and devices.has_cuda_build(),
        "plugin_problem": devices.plugin_problem(),
        "cupy": devices.cupy_version(),
        "pinned": pinned(),
    }


def pinned() -> dict[str, int | None]:
    """Bytes that could be pinned: free host memory, and the limit of locked memory (None: no limit)."""
    from edgekv.planning.available import available_bytes

    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {"available": available_bytes(), "limit": None if limit == resource.RLIM_INFINITY else limit}


def _devices(recalibrate: bool) -> list[dict[str, Any]]:
    """The devices that libedgekv finds, with their rates; the emulated one only where EDGEKV_ATTENTION_DEVICE asks for it."""
    kinds = [DeviceKind.CUDA]
    if os.environ.get("EDGEKV_ATTENTION_DEVICE") == DeviceKind.EMULATED.value:
        kinds.append(DeviceKind.EMULATED)
    return [to_builtins(info) | _rates(info, recalibrate) for kind in kinds for info in devices.devices(kind)]


def _rates(info: Any, recalibrate: bool) -> dict[str, Any]:
    from edgekv.planning.available import available_bytes
    from edgekv.planning.device import calibrate

    if not info.usable:
        return {"rates": None, "rates_error": info.problem}
    try:
        return {"rates": to_builtins(calibrate(info.kind, info.index, recalibrate, available_bytes())), "rates_error": None}
    except EdgeKVError as error:
        return {"rates": None, "rates_error": str(error)}


def _model(path: Path, usable: bool) -> dict[str, Any]:
    from edgekv.config import KvOptions
    from edgekv.models import geometry
    from edgekv.planning.fit import in_tokens, kv_bytes, plain_layers, sparse_layers

    g = geometry(path)
    sparse = KvOptions(mode=KvMode.SPARSE)
    kinds = [kind.value for kind in CacheType if g.holds(kind.value)]
    facts = structs.asdict(g) | {
        "path": str(path),
        "kv_bytes_per_token": {kind: g.kv_bytes_per_token(kind, kind) for kind in kinds},
        "kv_bytes_trained": {kind: g.kv_bytes(g.n_ctx_train, kind, kind) for kind in kinds},
        "sparse_bytes_trained": to_builtins(kv_bytes(g, g.n_ctx_train, sparse)) if usable and sparse_layers(g) else None,
    }
    evict = KvOptions.from_env(mode=KvMode.EVICT, attention_device="cpu")
    kept = kv_bytes(g, g.n_ctx_train, in_tokens(g, evict)) if plain_layers(g) else None
    facts["evict"] = None if kept is None else {"evict_to": str(evict.eviction.evict_to), **to_builtins(kept)}
    facts["device_plans"] = _device_plans(g) if usable else []
    layers, problem = _layers(path) if usable else ([], "the libraries cannot be used")
    return facts | {"layers": layers, "layers_error": problem}


def _device_plans(g: Geometry) -> list[dict[str, Any]]:
    """The plan of a context for each usable device, in each mode that runs there: bytes, hot tokens and what does not fit."""
    from edgekv.common.units import size
    from edgekv.config import KvOptions
    from edgekv.planning.available import available_bytes
    from edgekv.planning.device_fit import check_device, device_plan

    available, plans = available_bytes(), []
    for found in devices.devices(DeviceKind.CUDA):
        room = devices.room_of(found)
        for mode in (KvMode.EXACT, KvMode.SPARSE) if found.usable else ():
            for times in CONTEXTS:
                kv, n_ctx = KvOptions.from_env(mode=mode), times * g.n_ctx_train
                plan = device_plan(g, n_ctx, kv, room)
                try:
                    check_device(g, n_ctx, kv, room)
                    problem = None if plan.home <= available else (
                        f"the pages take {size(plan.home)} of host memory, and {size(available)} are free")
                except DoesNotFit as error:
                    problem = str(error)
                plans.append({"device": found.name, "mode": mode, "hot_tokens": plan.hot_tokens, "available": available,
                              **to_builtins(plan), "problem": problem})
    return plans


def _layers(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    from edgekv.llama import Llama

    try:
        llama = Llama(str(path), kv=KvMode.EXACT, n_ctx=N_CTX, verbose=False)
    except (EdgeKVError, ValueError) as error:  # llama_cpp raises ValueError if llama.cpp refuses the file
        return [], str(error)
    try:
        return [to_builtins(layer) for layer in llama.kv.layers], None
    finally:
        llama.close()
