"""What a context will take, part by part, from the model's header alone: what llama.cpp allocates, and what is ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgekv.amounts import MIB
from edgekv.config import KvOptions
from edgekv.memory.compute import compute_bytes
from edgekv.memory.device_fit import DeviceRoom, device_plan
from edgekv.memory.fit import cells, kv_bytes, rounded
from edgekv.models.geometry import Geometry, ModelFile

UBATCH_TOKENS = 512
"""Prompt tokens that llama.cpp computes at once on the processor."""

KNOWN, ESTIMATED, MEASURED = "known", "estimated", "measured"
"""How a figure was come by: it follows from the header and the options; it comes from a formula; somebody looked."""

HOST = "host"


@dataclass(frozen=True)
class Part:
    """Bytes of one purpose in one place: HOST, or the name of a device."""

    name: str
    bytes: int
    how: str
    place: str = HOST
    note: str = ""


def home_bytes(model: Geometry, n_ctx: int, kv: KvOptions, n_sequences: int = 1, n_ubatch: int = UBATCH_TOKENS) -> int:
    """K and V of all layers as llama.cpp allocates them: whole steps of 256 cells, and for sliding windows a ubatch more than the window."""
    n_cells = rounded(cells(n_ctx, kv))
    types = (kv.cache.type_k.value, kv.cache.type_v.value)
    plain = _only(model, sliding=False).kv_bytes(n_cells, *types)
    windowed = min(n_cells, rounded(min(n_cells, model.sliding_window + n_ubatch)))
    return n_sequences * (plain + _only(model, sliding=True).kv_bytes(windowed, *types))


def _only(model: Geometry, sliding: bool) -> Geometry:
    """With the KV heads of layers that slide, or of those that do not; each holds what it is asked for."""
    heads = tuple(n if slides is sliding else 0 for n, slides in zip(model.n_head_kv, model.swa, strict=True))
    return replace(model, n_head_kv=heads, swa=(False,) * model.n_layer)


def host_parts(model: ModelFile, n_ctx: int, kv: KvOptions, n_slots: int, store_bytes: int = 0, compute: int | None = None) -> list[Part]:
    """All of a context on the processor. compute: llama.cpp's work buffers, measured; None: by formula."""
    shape = model.geometry
    ours = kv_bytes(shape, n_ctx, kv, n_slots)
    return _present([
        Part("weights", shape.tensor_bytes, KNOWN, note="mapped from the file"),
        _compute(model, n_ctx, kv, n_slots, compute),
        Part("KV home", home_bytes(shape, n_ctx, kv, n_slots), KNOWN, note="K and V of all tokens"),
        Part("recurrent state", n_slots * shape.recurrent_bytes, KNOWN),
        Part("sketches", ours.sketches, KNOWN),
        Part("arena", ours.arena, KNOWN, note="copies of hot pages"),
        Part("tables", ours.tables, ESTIMATED),
        Part("work space", ours.workspace, ESTIMATED, note="of a step"),
        Part("prefix store", store_bytes, KNOWN, note="at most"),
    ])


def device_parts(model: ModelFile, n_ctx: int, kv: KvOptions, n_slots: int, room: DeviceRoom, store_bytes: int = 0) -> list[Part]:
    """A context whose attention runs on a device: what lies there, and the pages at home in host memory."""
    plan = device_plan(model.geometry, n_ctx, kv, room, n_slots)
    there = (("weights", plan.weights, KNOWN), ("compute", plan.compute, ESTIMATED), ("KV of other layers", plan.others, KNOWN),
             ("sketches", plan.sketches, KNOWN), ("tables", plan.tables, ESTIMATED), ("work space", plan.scratch, ESTIMATED),
             ("staging", plan.staging, KNOWN), ("ring", plan.ring, KNOWN), ("arena", plan.arena, KNOWN))
    return _present([Part("KV home", plan.home, KNOWN, note="K and V of all tokens, pinned"), Part("prefix store", store_bytes, KNOWN, note="at most"),
                     *(Part(name, n_bytes, how, room.name) for name, n_bytes, how in there)])


def _compute(model: ModelFile, n_ctx: int, kv: KvOptions, n_slots: int, measured: int | None) -> Part:
    if measured is not None:
        return Part("compute", measured, MEASURED, note="llama.cpp's work buffers")
    n_bytes, is_close = compute_bytes(model, cells(n_ctx, kv), n_slots, UBATCH_TOKENS)
    return Part("compute", n_bytes, ESTIMATED, note="llama.cpp's work buffers" + ("" if is_close else ", roughly: --measure asks llama.cpp"))


def _present(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.bytes]


def total(parts: Sequence[Part], place: str = HOST) -> int:
    return sum(part.bytes for part in parts if part.place == place)


NATIVE_BYTES = 32 * MIB
"""Libraries, vocabulary and Python, which no part counts."""
