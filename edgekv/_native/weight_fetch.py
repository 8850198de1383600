"""How kernels fetch weights before they multiply them: measured once on a machine, for each order in which they read rows, and kept.

It changes no result. What is fastest follows from the processor: sixteen rows side by side are sixteen streams, more than some processors follow.
"""

import threading
from pathlib import Path

import platformdirs

from edgekv._native import kept_choice, weight_types
from edgekv._native._core import ffi, lib
from edgekv._native.core import Handle, _check, isa

WAYS = {"stream, 2 near": (2, True), "stream": (0, True), "5 near": (5, False), "none": (0, False)}
"""The first is the kernels' default."""
LEAST_BYTES = 32 << 20
"""Smaller weights lie in caches: there it matters little, and is not measured."""

_lock = threading.Lock()
_chosen: dict[str, str] = {}  # walk to way, of this process


def choice_file() -> Path:
    return Path(platformdirs.user_cache_dir("edgekv")) / "weight-fetch.json"


def walks() -> list[str]:
    """The orders in which kernels read rows of weights."""
    found: list[str] = []
    while (name := lib.edgekv_walk_name(len(found))) != ffi.NULL:
        found.append(ffi.string(name).decode())
    return found


def time_ways(walk: str) -> dict[str, float]:
    """Seconds of each way to fetch 64 MiB of weights that are read in this order. Raises NativeError if EdgeKV multiplies no weights here."""
    ways, seconds = ffi.new("edgekv_fetch[]", list(WAYS.values())), ffi.new("double[]", len(WAYS))
    _check(lib.edgekv_time_fetches(walks().index(walk), ways, len(WAYS), seconds))
    return dict(zip(WAYS, seconds))


def use(walk: str, way: str) -> None:
    """From the next ubatch on."""
    _check(lib.edgekv_use_fetch(walks().index(walk), WAYS[way]))


def prepare(handle: Handle) -> None:
    """Use what is fastest on this machine, once in a process, if the model of `handle` is large enough for it to matter."""
    if lib.edgekv_weight_bytes(handle) < LEAST_BYTES or not weight_types.multiplied_by_us("Q4_1", None):
        return
    with _lock:
        for walk in walks():
            if walk not in _chosen:
                _chosen[walk] = choose(walk)
                use(walk, _chosen[walk])


def choose(walk: str) -> str:
    """The kept way of an order, or the fastest one."""
    names = list(WAYS)
    return kept_choice.choose(choice_file(), f"{isa()}, {walk}", names[0], names, lambda: time_ways(walk))
