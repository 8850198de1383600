"""Rates of this machine's devices: link, memories and launches, measured once; and what follows from them."""

from __future__ import annotations

import logging
import math
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
from msgspec import to_builtins

import edgekv
from edgekv.common import json_file
from edgekv.common.enums import DeviceKind

if TYPE_CHECKING:
    from edgekv._native.device_calls import DeviceInfo, Rates

log = logging.getLogger("edgekv")


class ColdPage(str, Enum):
    """The treatment of an attended page without a slot."""

    SHIP = "ship"  # copy it into device memory, and attend it there from then on
    READ = "read"  # attend it where it is, in host memory


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
    key = _key(native.info(kind, index))
    cached = {} if again else _read().get(_name(kind, index), {})
    if cached.get("key") == key and (rates := json_file.made(native.Rates, cached.get("rates"))) is not None:
        return rates
    rates = native.rates(kind, index, int(HOST_SHARE * available))
    _write(_name(kind, index), {"key": key, "rates": to_builtins(rates)})
    return rates


def cache_file() -> Path:
    """The file of the rates of this machine's devices."""
    return Path(platformdirs.user_cache_dir("edgekv")) / "rates.json"


def _name(kind: DeviceKind, index: int) -> str:
    return f"{kind.value}:{index}"


def _key(info: DeviceInfo) -> dict[str, Any]:
    """The key of the rates: device, driver, CUDA and EdgeKV's version."""
    return {"device": info.name, "arch": info.arch, "driver": info.driver, "runtime": info.runtime, "edgekv": edgekv.__version__}


def _read() -> dict[str, Any]:
    return {name: entry for name, entry in json_file.read(cache_file()).items() if isinstance(entry, dict)}


def _write(name: str, entry: dict[str, Any]) -> None:
    """Keep one device's rates beside those of others."""
    path = cache_file()
    try:
        json_file.replace(path, _read() | {name: entry})
    except OSError as error:
        log.warning("the measured rates cannot be kept in %s (%s): they are measured each time", path, error.strerror)


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


def ship_or_read(page_bytes: int, rates: Rates, uses: float = USES) -> ColdPage:
    """Whether to copy a cold page that will be attended `uses` times to the device, or to read it in place. Where reading in place is better,
    an arena gains nothing."""
    return ColdPage.SHIP if uses > break_even_uses(page_bytes, rates) else ColdPage.READ


def on_host_slowdown(rates: Rates) -> float:
    """The time that the processor needs to read the same pages in its memory, over the GPU's in its own; at least 1."""
    return max(1.0, rates.vram / rates.dram)


def pinning_refused(reason: str, rates: Rates | None = None) -> str:
    """The warning for a context whose home had to stay pageable: kernels cannot read it, so the processor attends."""
    cost = f", which reads them about {on_host_slowdown(rates):.0f}x slower than the GPU its own memory" if rates is not None else ""
    return f"{reason}: attention runs on the processor over pageable memory{cost}; the weights stay on the GPU"
