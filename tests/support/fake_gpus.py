"""GPUs that a test makes up: the answers of edgekv._native.device_calls, with no library behind it."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from edgekv._native import device_calls
from edgekv._native.device_calls import DeviceInfo, Rates
from edgekv.arrays import backend
from edgekv.common.enums import DeviceKind
from edgekv.common.errors import NativeError

GIB = 1 << 30

CARD = DeviceInfo(DeviceKind.CUDA, 0, "GeForce RTX 4070", 89, 13000, 13000, 46, 12 * GIB, 12 * GIB - (300 << 20), True, "")
RATES = Rates(link_copy=25e9, link_gather=22e9, link_rows=15e9, link_pageable=11e9, vram=450e9, dram=40e9, launch_us=5.0)


class Gpus:
    """The devices of this machine, and the number of measurements."""

    def __init__(self, *infos: DeviceInfo):
        self.infos = list(infos)
        self.rates: Rates | None = RATES
        self.n_measured = 0
        self.cupy_problem: str | None = None

    def change(self, **fields: object) -> None:
        self.infos = [replace(info, **fields) for info in self.infos]

    def of(self, kind: DeviceKind) -> list[DeviceInfo]:
        return [info for info in self.infos if info.kind is kind]

    def measure(self, kind: DeviceKind, index: int = 0, host_bytes: int = 0) -> Rates:
        self.n_measured += 1
        if self.rates is None:
            raise NativeError("the device was lost while it was measured")
        return self.rates


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Callable[..., Gpus]:
    """`gpus(*infos)` puts these in place of the machine's devices; rates are kept in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def install(*infos: DeviceInfo) -> Gpus:
        found = Gpus(*infos)
        monkeypatch.setattr(device_calls, "count", lambda kind: len(found.of(kind)))
        monkeypatch.setattr(device_calls, "info", lambda kind, index=0: found.of(kind)[index])
        monkeypatch.setattr(device_calls, "rates", found.measure)
        monkeypatch.setattr(backend, "problem", lambda index, runtime, folder: found.cupy_problem)
        return found

    return install
