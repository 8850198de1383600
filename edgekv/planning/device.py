"""Rates of this machine's devices: link, memories and launches, measured once; and what follows from them."""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

import edgekv
from edgekv.common import json_file
from edgekv.common.enums import DeviceKind
from edgekv.planning.kept import Kept

if TYPE_CHECKING:
    from edgekv._native.device_calls import DeviceInfo, Rates

HOST_SHARE = 0.25
"""Of the free host memory, what measuring pins: other programs go on meanwhile."""

USES = 32
"""How often a page that was given a slot is attended before another takes it. A head of the default model attends 60 pages of a token
at 12.5 % of 7,680 tokens, and fetches 0.8 to 2.2 of them into an arena of twice as many: 27 to 75 uses for each (`edgekv lab sim`)."""


# ---- measured -------------------------------------------------------------------------------------------------------------------


def calibrate(kind: DeviceKind, index: int = 0, again: bool = False, available: int = 0) -> Rates:
    """Rates of a device: measured when this machine first asks (some seconds), then from the cache.

    available: free bytes of host memory, of which measuring may pin `HOST_SHARE`. The rates are measured anew with `again`, and where device,
    driver or EdgeKV are not those of the cached ones, or the cache cannot be read. Raises NativeError where the device cannot be used.
    """
    native = import_module("edgekv._native.device_calls")
    name, key, kept = f"{kind.value}:{index}", _key(native.info(kind, index)), kept_rates()
    cached = {} if again else kept.find(name, dict) or {}
    if cached.get("key") == key and (rates := json_file.made(native.Rates, cached.get("rates"))) is not None:
        return rates
    rates = native.rates(kind, index, int(HOST_SHARE * available))
    kept.keep(name, {"key": key, "rates": to_builtins(rates)})
    return rates


def kept_rates() -> Kept:
    """Those of this machine's devices."""
    return Kept("rates.json", "the measured rates")


def _key(info: DeviceInfo) -> dict[str, Any]:
    """The key of the rates: device, driver, CUDA and EdgeKV's version."""
    return {"device": info.name, "arch": info.arch, "driver": info.driver, "runtime": info.runtime, "edgekv": edgekv.__version__}


# ---- what follows from it -------------------------------------------------------------------------------------------------------


def break_even_uses(page_bytes: int, rates: Rates) -> float:
    """After how many uses a copy of a cold page has paid for itself; infinite where reading host memory in place is as fast.

    In place each use takes `page_bytes / link_gather`. A copy takes that once, one write and then for each use one read of device
    memory, and its part of a launch: pages are copied many to a launch, a launch of a mebibyte is counted.
    """
    over_link = page_bytes / rates.link_gather
    on_device = page_bytes / rates.vram
    launch = rates.launch_us * 1e-6 * min(1.0, page_bytes / (1 << 20))
    if over_link <= on_device:
        return math.inf
    return (over_link + on_device + launch) / (over_link - on_device)


def ships(page_bytes: int, rates: Rates, uses: float = USES) -> bool:
    """Whether to copy a cold page that will be attended `uses` times to the device, and not to read it in place. Where reading in place is better,
    an arena gains nothing."""
    return uses > break_even_uses(page_bytes, rates)


def on_host_slowdown(rates: Rates) -> float:
    """The time that the processor needs to read the same pages in its memory, over the GPU's in its own; at least 1."""
    return max(1.0, rates.vram / rates.dram)


def pinning_refused(reason: str, rates: Rates | None = None) -> str:
    """The warning for a context whose home had to stay pageable: kernels cannot read it, so the processor attends."""
    cost = f", which reads them about {on_host_slowdown(rates):.0f}x slower than the GPU its own memory" if rates is not None else ""
    return f"{reason}: attention runs on the processor over pageable memory{cost}; the weights stay on the GPU"
