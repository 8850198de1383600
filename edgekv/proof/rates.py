"""The rates of link and memories, as every start measures them (`planning.device`)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec import to_builtins

from edgekv.common.enums import DeviceKind
from edgekv.planning.available import available_bytes
from edgekv.planning.device import calibrate
from edgekv.proof.steps import Outcome, Part, Told


def run(part: Part) -> Iterator[Told]:
    kind = DeviceKind(part.kind)
    rates = to_builtins(calibrate(kind, part.index, again=not part.quick, available=available_bytes()))
    for name, value in rates.items():
        right = math.isfinite(value) and value > 0
        told = f"{value:.1f} us" if name == "launch_us" else f"{value / 1e9:.1f} GB/s"
        meaning = "" if kind is DeviceKind.CUDA else "; of an emulated device it means nothing"
        yield name.removesuffix("_us"), Outcome.TOLD if right else Outcome.WRONG, told + meaning
