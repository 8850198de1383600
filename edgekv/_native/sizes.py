"""Bytes of what a context will take, asked of the library before there is one."""

from msgspec import Struct, structs

from edgekv._native._core import ffi, lib
from edgekv._native.core import _MODES
from edgekv.common.enums import KvMode
from edgekv.common.reports import DeviceBytes


class LayerSize(Struct, frozen=True):
    """A layer that EdgeKV attends on the host. Its heads have a size that a kernel serves."""

    mode: KvMode
    sketches: bool
    """Not in mode evict, but where it samples what is kept."""
    n_head: int
    n_head_kv: int
    head_dim: int
    """Of K."""
    v_in_k: int
    """0: V has rows of its own. Else so many first channels of a row of K are its V: compressed KV (MLA)."""
    n_listed: int
    """Cells that an index lists for a token; 0: there is no index."""
    n_cells: int
    """Cells of a stream."""
    page_tokens: int
    n_threads: int


class PagesSize(Struct, frozen=True):
    """The pages of a context on the host."""

    n_layers: int
    n_heads: int
    """The maximum number of KV heads over these layers."""
    n_streams: int
    n_cells: int
    """Cells of a stream."""
    page_tokens: int
    n_slots: int
    """Slots of the arena."""


def table_bytes(pages: PagesSize) -> int:
    """Bytes of the page table, attention mass, and data about cells and pins: the same in every mode."""
    return lib.edgekv_table_bytes(ffi.new("edgekv_pages_size *", structs.asdict(pages)))


def kept_cells(n_cells: int, keep_tokens: int, by_layer: bool, n_trained: int) -> int:
    """Mode evict: cells of a stream, of at most n_cells, for a cache with K and V of keep_tokens tokens, means of the layers. by_layer: layers can
    give rows back, and keep different tokens; n_trained: positions that the model was trained for."""
    return lib.edgekv_kept_cells(n_cells, keep_tokens, by_layer, n_trained)


def sketch_bytes(layer: LayerSize) -> int:
    """Sketches of the layer and one stream."""
    return lib.edgekv_sketch_bytes(_native(layer))


def step_bytes(layer: LayerSize) -> int:
    """Buffers between the nodes for a stream's longest step with observed mass. All layers use them in turn."""
    return lib.edgekv_step_bytes(_native(layer))


def prompt_bytes(layer: LayerSize) -> int:
    """Scratch of all threads that read a prompt."""
    return lib.edgekv_prompt_bytes(_native(layer))


def slot_bytes(row_bytes: int, page_tokens: int) -> int:
    """A slot of the arena, for pages whose tokens take `row_bytes` of K and V in a head."""
    return lib.edgekv_slot_bytes(row_bytes, page_tokens)


class DeviceHeads(Struct, frozen=True):
    """A layer that EdgeKV attends on a device, with K and V in f16, q8_0 or q4_0."""

    n_head: int
    n_head_kv: int
    head_dim: int
    k_row_bytes: int
    """Bytes of K of one head of one cell."""
    v_row_bytes: int


class DeviceSize(Struct, frozen=True):
    """A context on a device, which need not exist."""

    mode: KvMode
    """Exact or sparse."""
    n_streams: int
    n_cells: int
    """Cells of a stream."""
    page_tokens: int
    n_sm: int
    """Multiprocessors of the device: scratch grows with them."""
    has_display: bool
    total_bytes: int
    """The device's memory."""
    free_bytes: int
    """Of that, what weights and caches of llama.cpp leave."""
    later_bytes: int
    """Of the free bytes, what llama.cpp takes after staging and ring: its work buffers."""
    budget_bytes: int
    """0: the free bytes, less those and `device_margin`."""
    layers: tuple[DeviceHeads, ...]


def device_bytes(size: DeviceSize) -> DeviceBytes:
    layers = ffi.new("edgekv_device_heads[]", [structs.asdict(layer) for layer in size.layers])
    of = structs.asdict(size) | {"mode": _MODES[size.mode], "n_layers": len(size.layers), "layers": layers}
    out = ffi.new("edgekv_device_bytes *")
    lib.edgekv_get_device_bytes(ffi.new("edgekv_device_size *", of), out)
    return DeviceBytes(out.budget, out.sketches, out.tables, out.scratch, out.staging, out.ring, out.arena, out.n_staged, out.n_slots)


def piece_heads(layer_bytes: int, n_head_kv: int) -> int:
    """The KV heads of a piece: prompts attend a layer in pieces. layer_bytes: K and V of the widest layer, which has `n_head_kv` heads."""
    return lib.edgekv_piece_heads(layer_bytes, n_head_kv)


def device_margin(total_bytes: int, has_display: bool) -> int:
    """Bytes that a plan with an automatic budget leaves to the driver, CUDA graphs, other programs and a screen."""
    return lib.edgekv_device_margin(total_bytes, has_display)


def _native(layer: LayerSize):
    return ffi.new("edgekv_layer_size *", structs.asdict(layer) | {"mode": _MODES[layer.mode]})
