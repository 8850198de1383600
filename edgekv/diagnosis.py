"""What this installation is, and what it would do with a model: the facts behind `edgekv doctor`."""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgekv.errors import EdgeKVError, ModelError, NativeError
from edgekv.vocab import KvMode

N_CTX = 512  # of the context that is opened to see which layers are hooked


def diagnose(model: Path | None = None) -> dict[str, Any]:
    """The report, ready for JSON. `libraries_error` and `default_model_error` are sentences, or None.

    With a model: its geometry, KV bytes and layers under `model`. Raises ModelError if it is no model that can chat.
    """
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": {"name": _cpu_name(), "cores": os.cpu_count()},
    }
    report |= _libraries()
    report["gpu"] = _gpu(report.get("backends") or [])
    report |= _default_model()
    if model is not None:
        report["model"] = _model(model, usable=report["libraries_error"] is None)
    return report


def _libraries() -> dict[str, Any]:
    keys = ("version", "upstream", "llama_cpp_python", "enabled", "isa", "isa_available", "system", "libraries")
    try:
        from edgekv import _native

        info = _native.info()
    except (NativeError, ImportError, OSError, RuntimeError) as error:  # the last three: llama_cpp's, for what it cannot load
        return {**dict.fromkeys(keys), "backends": None, "libraries_error": str(error)}
    return {**{key: info[key] for key in keys}, "backends": _backends(info["libraries"]), "libraries_error": None}


def _backends(libraries: dict[str, str]) -> list[str]:
    """ggml builds each backend as a library of its own: libggml-cpu, libggml-cuda, ..."""
    names = {name.partition(".")[0].removeprefix("lib").removeprefix("ggml-") for name in libraries if "ggml-" in name}
    return sorted(names - {"base"})


def _default_model() -> dict[str, Any]:
    from edgekv.models import default_model

    try:
        return {"default_model": str(default_model()), "default_model_error": None}
    except ModelError as error:
        return {"default_model": None, "default_model_error": str(error)}


def _gpu(backends: list[str]) -> dict[str, Any]:
    """Which NVIDIA GPUs there are, whether they are used, and a sentence that says why not."""
    devices, problem = _nvidia_devices()
    built = "cuda" in backends
    if devices and built:
        reason = "in use"
    elif devices:
        reason = "not used: this build has no CUDA backend; install with EDGEKV_CUDA=on"
    else:
        reason = f"not used: {problem}"
    return {"devices": devices, "used": bool(devices and built), "reason": reason}


def _nvidia_devices() -> tuple[list[str], str]:
    command = shutil.which("nvidia-smi")
    driver = ctypes.util.find_library("cuda")
    if command is None:
        if driver is None:
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
    if driver is None:
        return [], f"nvidia-smi lists {lines[0]}, but the driver library libcuda is missing"
    return [f"{name}, {memory}, driver {version}" for name, memory, version in (line.split(", ") for line in lines)], ""


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _model(path: Path, usable: bool) -> dict[str, Any]:
    from edgekv.config import KvOptions
    from edgekv.fit import kv_bytes, sparse_layers
    from edgekv.models import geometry

    g = geometry(path)
    sparse = KvOptions(mode=KvMode.SPARSE)
    facts = asdict(g) | {
        "path": str(path),
        "kv_bytes_per_token": {kind: g.kv_bytes_per_token(kind, kind) for kind in ("f16", "q8_0")},
        "kv_bytes_trained": {kind: g.kv_bytes(g.n_ctx_train, kind, kind) for kind in ("f16", "q8_0")},
        "sparse_bytes_trained": asdict(kv_bytes(g, g.n_ctx_train, sparse)) if sparse_layers(g) else None,
    }
    layers, problem = _layers(path) if usable else ([], "the libraries cannot be used")
    return facts | {"layers": layers, "layers_error": problem}


def _layers(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    from edgekv.llama import Llama

    try:
        llama = Llama(str(path), kv=KvMode.EXACT, n_ctx=N_CTX, verbose=False)
    except (EdgeKVError, ValueError) as error:  # ValueError: llama_cpp's, where llama.cpp refuses the file
        return [], str(error)
    try:
        return [asdict(layer) for layer in llama.kv.layers], None
    finally:
        llama.close()
