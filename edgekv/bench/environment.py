"""Describes the measuring machine: in a line above each table, and in fields of each row of JSON."""

import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import psutil

import edgekv
from edgekv import _native
from edgekv.common.enums import DeviceKind
from edgekv.common.machine import cpu_family, cpu_name, n_cores, stamp
from edgekv.config import KvOptions
from edgekv.planning import devices
from edgekv.planning.host import KeptRates

_SECONDS = 5.0
"""Time for a program to answer a question about the machine."""


def environment(n_threads: int) -> dict[str, Any]:
    """The processor, memory and its rate when `n_threads` read it, GPU, and versions. A missing fact is None."""
    info = _native.info()
    gpu = _gpu()
    return {
        "date": stamp()["date"], "cpu": cpu_name(), "family": cpu_family(), "isa": info["isa"], "cores": n_cores(),
        "ram_bytes": psutil.virtual_memory().total, "memory_gb_s": round(_read_rate(n_threads, info["isa"]) / 1e9, 2), **gpu,
        "python": platform.python_version(), "edgekv": info["version"], "llama_cpp": llama_cpp_commit(), "commit": _commit(),
    }


def in_words(where: dict[str, Any]) -> str:
    """The line above a table."""
    forms = (("family", "{}"), ("cores", "{} cores"), ("isa", "{} kernels"), ("memory_gb_s", "memory {} GB/s"), ("gpu", "{}"),
             ("driver", "driver {}"), ("link", "link {} GB/s"), ("date", "{}"), ("edgekv", "EdgeKV {}"), ("commit", "commit {}"),
             ("llama_cpp", "llama.cpp {}"), ("python", "Python {}"))
    return "; ".join(form.format(where[key]) for key, form in forms if where.get(key) is not None)


def llama_cpp_commit() -> str:
    """The commit of llama.cpp that the libraries were built from."""
    found = re.search(r"llama\.cpp (\w+)", _native.info()["upstream"])
    return found[1] if found else ""


def _read_rate(n_threads: int, isa: str) -> float:
    """The read rate in bytes per second. The first call on a machine measures it."""
    kept = KeptRates(n_threads, isa)
    known = kept.read()
    if known is None:
        from edgekv.measure.busy import Others
        from edgekv.measure.weights import read_rate

        others = Others()
        known = read_rate(n_threads)
        if not others.busy():
            kept.keep("read", known)
    return known


def _gpu() -> dict[str, Any]:
    placement = devices.place(KvOptions.from_env())
    if placement.kind is not DeviceKind.CUDA or placement.info is None:
        return {"gpu": None, "driver": None, "link": None}
    from edgekv.planning.available import available_bytes
    from edgekv.planning.device import calibrate

    rates = calibrate(placement.kind, placement.index, available=available_bytes())
    return {"gpu": placement.info.name, "driver": _asked("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
            "link": round(rates.link_copy / 1e9, 1)}


def _commit() -> str | None:
    """EdgeKV's commit, if it runs from a repository."""
    root = Path(edgekv.__file__).resolve().parent.parent
    return _asked("git", "-C", str(root), "rev-parse", "--short", "HEAD") if (root / "patches" / "UPSTREAM").exists() else None


def _asked(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None
