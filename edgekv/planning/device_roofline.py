"""The time of a token where attention runs on a GPU, from the rates of its memory and its link. It was never compared with a measurement."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from edgekv.common.enums import KvMode
from edgekv.config import KvOptions
from edgekv.models.geometry import ModelFile
from edgekv.models.traffic import traffic
from edgekv.planning.device_fit import DeviceRoom, device_plan
from edgekv.planning.fit import head_row_bytes
from edgekv.planning.roofline import Speed, rows_read

if TYPE_CHECKING:
    from edgekv._native.device_calls import Rates

_HOT = ((0.0, 0.0), (0.05, 0.44), (0.1, 0.655), (0.2, 0.801), (0.4, 0.905), (1.0, 1.0))
"""(memory of the arena as a share of all pages, share of the rows of mode sparse that are read from there): pages and rows in it as on a device, the lowest
of three real texts in lab/results/rows_on_device.csv. Replayed reads, with a policy that moves pages at once: a live arena has fewer hits."""

LEAST_GAIN = 1.5
"""By so much sparse must be faster than exact before it is chosen: exact leaves nothing out, and the estimate was never compared."""


def prefers_sparse(exact: float | None, sparse: float | None) -> bool:
    """Whether sparse is to be taken. exact, sparse: estimated tokens/s; None: the mode does not fit."""
    return sparse is not None and (exact is None or sparse >= LEAST_GAIN * exact)


class DeviceRoofline:
    """A token's bytes over the rates of the memories that they lie in. This is a bound: work that reading does not hide is left out."""

    def __init__(self, model: ModelFile, kv: KvOptions, room: DeviceRoom, rates: Rates, n_sequences: int = 1):
        self._model, self._kv, self._room, self._rates, self._n_sequences = model, kv, room, rates, n_sequences
        self._weights_s = traffic(model).active_bytes / rates.vram

    def speed(self, mode: KvMode, depth: int) -> Speed:
        """The speed at a depth, without a prompt's; decode None: the context does not fit."""
        seconds = self.decode_seconds(mode, depth)
        return Speed(mode.value, depth, None if seconds is None else 1 / seconds, None)

    def decode_seconds(self, mode: KvMode, depth: int) -> float | None:
        kv = self._kv.with_(mode=mode) if mode is not KvMode.OFF else self._kv.with_(mode=mode, kv_vram=None)
        plan = device_plan(self._model.geometry, depth, kv, self._room, self._n_sequences)
        share = 1 / self._n_sequences  # of what all sequences have, a token reads that of one
        if plan.room < 0 or plan.missing:
            return None
        seconds = self._weights_s + share * plan.others / self._rates.vram
        if mode is KvMode.OFF or not plan.n_heads:
            return seconds
        hot = min(1.0, plan.arena / max(1, plan.home))
        if mode is KvMode.EXACT:
            return seconds + share * plan.home * (hot / self._rates.vram + (1 - hot) / self._rates.link_copy)
        read = rows_read(depth, self._kv.selection.typical_resolution) * plan.n_heads * head_row_bytes(self._model.geometry, self._kv.cache)
        hits = hit_share(hot)
        return seconds + share * plan.sketches / self._rates.vram + read * hits / self._rates.vram + read * (1 - hits) / self._rates.link_rows


def hit_share(hot: float) -> float:
    """The share of mode sparse's rows that come from an arena with the share `hot` of the pages."""
    (x0, y0), (x1, y1) = next(pair for pair in pairwise(_HOT) if hot <= pair[1][0])
    return y0 + (y1 - y0) * (hot - x0) / (x1 - x0)
