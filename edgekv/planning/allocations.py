"""The memory of a context, part by part, from the model's header alone: llama.cpp's allocations and ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from edgekv.common.enums import KvMode
from edgekv.common.units import MIB
from edgekv.config import CacheOptions, KvOptions
from edgekv.models.geometry import UBATCH_TOKENS, Geometry, ModelFile
from edgekv.models.inspector import Asked, inspector
from edgekv.planning.fit import COMPUTE_BYTES, KvBytes, cells, kept, kv_bytes, paging_bytes, rounded, sparse_layers
from edgekv.planning.home import PAGE, free_on_disk, hot_rows_bytes
from edgekv.planning.workspace import prompt_bytes, step_bytes

if TYPE_CHECKING:
    from edgekv.planning.device_fit import DeviceRoom

KNOWN, ESTIMATED = "known", "estimated"
"""The source of a figure: llama.cpp, the header and the options; or a formula."""

HOST, DISK = "host", "disk"

NATIVE_BYTES = 32 * MIB
"""Bytes of libraries, vocabulary and Python, which no part contains."""


class MemoryPart(Struct, frozen=True):
    """Bytes of one purpose in one place: HOST, DISK, the name of a device, or the folder of a KV home."""

    name: str
    bytes: int
    how: str
    place: str = HOST
    note: str = ""


class Slots(Struct, frozen=True):
    """Simultaneous conversations, each with its own context. unified: they share one cache, as large as all together."""

    n: int = 1
    unified: bool = False

    @property
    def caches(self) -> tuple[int, int]:
        """The number of caches, and the conversations in each."""
        return (1, self.n) if self.unified else (self.n, 1)


class ContextRequest(Struct, frozen=True):
    """The wanted context, and the memory for it. n_ctx: tokens of each slot; None: as many as memory allows."""

    model: ModelFile
    kv: KvOptions
    n_ctx: int | None
    slots: Slots
    available: int
    """Free bytes of host memory (`planning.available`)."""
    store_bytes: int = 0
    """Bytes of the prefix store in RAM."""
    room: DeviceRoom | None = None
    """The GPU that attends; None: the processor does."""
    n_threads: int = 1
    gpu_layers: int = 0
    """Layers in GPU memory if the processor attends."""
    later_bytes: int = 0
    """Bytes of a draft model, projector or adapters, which are loaded after the model."""
    from_disk: bool = False
    """Weights may stay on disk and be read for each token."""
    later: tuple[str, ...] = ()
    """Options of llama.cpp's server for them, for whoever repeats the request."""

    @property
    def shape(self) -> Geometry:
        return self.model.geometry

    @property
    def in_flight_bytes(self) -> int:
        """Most bytes of prefix rows that are being loaded."""
        if not self.store_bytes:
            return 0
        from edgekv.prefix_cache.blocks import BLOCK_TOKENS, most_in_flight

        return most_in_flight(BLOCK_TOKENS * self.shape.kv_bytes_per_token(*self.kv.cache.kinds))

    def parts(self, n_ctx: int, kv: KvOptions, exact: bool = True) -> list[MemoryPart]:
        """The parts in all places, for `n_ctx` tokens for each slot. exact: as `Inspector.compute_bytes`."""
        if self.room is not None:
            return device_parts(self, n_ctx, kv, self.room)
        return host_parts(self, n_ctx, kv, exact)

    def needed(self, n_ctx: int, kv: KvOptions) -> int:
        """Bytes of host memory in total."""
        return total(self.parts(n_ctx, kv, exact=False)) + (NATIVE_BYTES if self.room is None else COMPUTE_BYTES)

    def on_disk(self, n_ctx: int, kv: KvOptions) -> int:
        """Bytes of a KV home on disk, with its second file; 0: home is in memory."""
        if kv.cache.kv_dir is None:
            return 0
        by_head = by_head_bytes(self.shape, n_ctx, self.with_hot_rows(n_ctx, kv), self.slots)
        return home_bytes(self.shape, n_ctx, kv, self.slots) + by_head

    def with_hot_rows(self, n_ctx: int, kv: KvOptions) -> KvOptions:
        """The options with a `kv_budget` for rows that are read most lately, if K and V lie in a file and none was given."""
        if kv.cache.kv_dir is None or kv.placement.kv_budget is not None or kv.mode is not KvMode.SPARSE:
            return kv
        free = self.available - self.needed(n_ctx, kv)
        return kv.with_(kv_budget=hot_rows_bytes(free, home_bytes(self.shape, n_ctx, kv, self.slots)))

    @property
    def disk_free(self) -> int:
        """Bytes that a KV home can take in its folder; 0: home is in memory. Raises ConfigError for a folder that cannot have one."""
        return 0 if self.kv.cache.kv_dir is None else free_on_disk(self.kv.cache.kv_dir)

    def fits(self, n_ctx: int, kv: KvOptions) -> bool:
        """Whether everything fits into free memory."""
        if self.room is not None:
            from edgekv.planning.device_fit import device_plan

            plan = device_plan(self.shape, n_ctx, kv, self.room, self.slots.n)
            if plan.room < 0 or plan.missing:
                return False
        return self.needed(n_ctx, kv) <= self.available and self.on_disk(n_ctx, kv) <= self.disk_free


def home_bytes(model: Geometry, n_ctx: int, kv: KvOptions, slots: Slots = Slots(), n_ubatch: int = UBATCH_TOKENS) -> int:
    """Bytes of K and V of all layers as llama.cpp allocates them."""
    return model.kv_bytes(kept(n_ctx, kv), *kv.cache.kinds, slots.n, slots.unified, n_ubatch)


def work_bytes(model: Geometry, n_ctx: int, cache: CacheOptions, slots: Slots = Slots(), n_ubatch: int = UBATCH_TOKENS, exact: bool = True) -> int:
    """Bytes of llama.cpp's work buffers on the processor, with the logits of one token of each slot. exact: as `Inspector.compute_bytes`."""
    asked = Asked(slots.n, slots.unified, n_ubatch, cache.type_k.ggml_type, cache.type_v.ggml_type)
    return inspector(model.path).compute_bytes(rounded(n_ctx * slots.caches[1]), asked, exact)


def by_head_bytes(model: Geometry, n_ctx: int, kv: KvOptions, slots: Slots = Slots()) -> int:
    """Bytes of the second file of a KV home on disk: rows of one head after the other, each head in whole pages of the disk. 0: there is none."""
    if kv.cache.kv_dir is None or kv.mode is not KvMode.SPARSE or not kv.placement.kv_budget:
        return 0
    n_caches, n_together = slots.caches
    n_cells = rounded(n_together * n_ctx)
    return n_caches * sum(model.layer_kv_bytes(il, *kv.cache.kinds) * n_cells + model.n_head_kv[il] * PAGE for il in sparse_layers(model))


def host_parts(request: ContextRequest, n_ctx: int, kv: KvOptions, exact: bool = True) -> list[MemoryPart]:
    """The parts of a context on the processor. exact: as `Inspector.compute_bytes`."""
    shape, n_slots = request.shape, request.slots.n
    ours = _ours(request, n_ctx, kv)
    hot = "copies of hot pages" if kv.cache.kv_dir is None else "copies of the rows that are read most lately"
    tables, scratch = _beside(shape, n_ctx, kv, request)
    where, note = (DISK, "read again for every token") if request.from_disk else (HOST, "mapped from the file")
    weights = shape.tensor_bytes * (shape.n_layer + 1 - min(request.gpu_layers, shape.n_layer)) // (shape.n_layer + 1)
    return _present([
        MemoryPart("weights", weights, KNOWN if weights == shape.tensor_bytes else ESTIMATED, where, note),
        MemoryPart("compute", work_bytes(shape, cells(shape, n_ctx, kv), kv.cache, request.slots, exact=exact), KNOWN, note="llama.cpp's work buffers"),
        MemoryPart("KV home", home_bytes(shape, n_ctx, kv, request.slots), KNOWN, HOST if kv.cache.kv_dir is None else str(kv.cache.kv_dir),
                   "K and V of all tokens"),
        MemoryPart("KV by head", by_head_bytes(shape, n_ctx, kv, request.slots), KNOWN, str(kv.cache.kv_dir), "the same, a head's rows together"),
        MemoryPart("recurrent state", n_slots * shape.recurrent_bytes, KNOWN),
        MemoryPart("sketches", ours.sketches, KNOWN),
        MemoryPart("arena", ours.arena, KNOWN, note=hot),
        MemoryPart("tables", ours.tables + tables, ESTIMATED),
        MemoryPart("work space", ours.workspace + scratch, ESTIMATED, note="of a step, and of a prompt"),
        MemoryPart("loaded later", request.later_bytes, ESTIMATED, note="a projector, adapters or a draft model"),
        MemoryPart("prefix store", request.store_bytes, KNOWN, note="at most"),
        MemoryPart("prefixes in flight", request.in_flight_bytes, KNOWN, note="at most, while they are loaded"),
    ])


def device_parts(request: ContextRequest, n_ctx: int, kv: KvOptions, room: DeviceRoom) -> list[MemoryPart]:
    """The parts of a context whose attention runs on a device: those in its memory, and the pages at home in host memory."""
    from edgekv.planning.device_fit import device_plan

    plan = device_plan(request.shape, n_ctx, kv, room, request.slots.n)
    there = (("weights", plan.weights, KNOWN), ("compute", plan.compute, ESTIMATED), ("KV of other layers", plan.others, KNOWN),
             ("sketches", plan.sketches, KNOWN), ("tables", plan.tables, ESTIMATED), ("work space", plan.scratch, ESTIMATED),
             ("staging", plan.staging, KNOWN), ("ring", plan.ring, KNOWN), ("arena", plan.arena, KNOWN))
    return _present([MemoryPart("KV home", plan.home, KNOWN, note=f"K and V of all tokens, pinned{' as they come' if room.pins_later else ''}"),
                     MemoryPart("prefix store", request.store_bytes, KNOWN, note="at most"),
                     MemoryPart("prefixes in flight", request.in_flight_bytes, KNOWN, note="at most, while they are loaded"),
                     *(MemoryPart(name, n_bytes, how, room.name) for name, n_bytes, how in there)])


def _ours(request: ContextRequest, n_ctx: int, kv: KvOptions) -> KvBytes:
    """Slots that share a cache count as one sequence, as long as all together."""
    slots = request.slots
    n_tokens, n_sequences = (slots.n * n_ctx, 1) if slots.unified else (n_ctx, slots.n)
    return kv_bytes(request.shape, n_tokens, kv, n_sequences, request.n_threads)


def _beside(shape: Geometry, n_ctx: int, kv: KvOptions, request: ContextRequest) -> tuple[int, int]:
    """Bytes of tables and of work space beside `KvBytes`: those of mode exact, and the scratch of threads that read a prompt."""
    layers, slots = sparse_layers(shape), request.slots
    if kv.mode is KvMode.OFF or not layers:
        return 0, 0
    n_caches, n_cells = (1, slots.n * n_ctx) if slots.unified else (slots.n, cells(shape, n_ctx, kv))
    scratch = prompt_bytes(shape, layers, n_cells, kv, request.n_threads)
    if kv.mode is not KvMode.EXACT:
        return 0, scratch
    return paging_bytes(shape, layers, n_cells, kv, n_caches), scratch + n_caches * step_bytes(shape, layers, n_cells, kv, request.n_threads)


def _present(parts: Sequence[MemoryPart]) -> list[MemoryPart]:
    return [part for part in parts if part.bytes]


def total(parts: Sequence[MemoryPart], place: str = HOST) -> int:
    return sum(part.bytes for part in parts if part.place == place)
