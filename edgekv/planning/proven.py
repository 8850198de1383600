"""What `edgekv doctor --gpu` found on this machine's cards, kept by card, driver, CuPy and the sources of our native code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekv.common.machine import stamp
from edgekv.planning import devices
from edgekv.planning.kept import Kept

if TYPE_CHECKING:
    from edgekv._native.device_calls import DeviceInfo

HOW = "stock attention runs on {}: `edgekv doctor --gpu` (3 minutes) tests EdgeKV's on this card and turns it on"
FAILED = "stock attention runs on {}: `edgekv doctor --gpu` found EdgeKV's wrong there on {}"


def proven(card: DeviceInfo) -> bool:
    """Whether EdgeKV's attention passed on this very card, driver, CuPy and build."""
    return _kept(card).get("passed") is True


def why_stock(card: DeviceInfo) -> str:
    """The sentence for a card that is not proven."""
    kept = _kept(card)
    return FAILED.format(card.name, kept.get("date")) if kept.get("passed") is False else HOW.format(card.name)


def keep(card: DeviceInfo, passed: bool) -> None:
    """Keep a verdict in place of that of other drivers and builds."""
    _file(card).keep(_name(card), {"key": _key(card), "passed": passed, "date": stamp()["date"]})


def _file(card: DeviceInfo) -> Kept:
    return Kept("gpus.json", f"the verdict on {card.name}", "stock attention stays")


def _kept(card: DeviceInfo) -> dict:
    found = _file(card).find(_name(card), dict) or {}
    return found if found.get("key") == _key(card) else {}


def _name(card: DeviceInfo) -> str:
    return f"{card.kind.value}: {card.name}"


def _key(card: DeviceInfo) -> dict[str, object]:
    native = devices.native_devices()
    return {"arch": card.arch, "driver": card.driver, "runtime": card.runtime, "cupy": devices.cupy_version(),
            "sources": native.sources() if native is not None else None}
