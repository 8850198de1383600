"""Bytes of what a context will take, asked of the library before there is one."""

from collections.abc import Sequence

from edgekv._native._core import ffi, lib
from edgekv._native.core import _MODES
from edgekv.common.enums import KvMode
from edgekv.common.reports import DeviceBytes

LayerSize = tuple[KvMode, bool, int, int, int, int, int, int, int, int]
"""The fields of edgekv_layer_size in their order; edgekv_sizes.h explains them."""


def table_bytes(*pages: int) -> int:
    """Bytes of the page table, attention mass, and data about cells and pins: the same in every mode. pages: the fields of edgekv_pages_size."""
    return lib.edgekv_table_bytes(ffi.new("edgekv_pages_size *", pages))


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


def device_bytes(mode: KvMode, layers: Sequence[tuple[int, ...]], *device: int) -> DeviceBytes:
    """Of a context on a device, which need not exist, in mode exact or sparse. layers: the fields of edgekv_device_heads of each; device: those of
    edgekv_device_size between `mode` and the layers."""
    heads = ffi.new("edgekv_device_heads[]", list(layers))
    out = ffi.new("edgekv_device_bytes *")
    lib.edgekv_get_device_bytes(ffi.new("edgekv_device_size *", (_MODES[mode], *device, len(layers), heads)), out)
    return DeviceBytes(out.budget, out.sketches, out.tables, out.scratch, out.staging, out.ring, out.arena, out.n_staged, out.n_slots)


def piece_heads(layer_bytes: int, n_head_kv: int) -> int:
    """The KV heads of a piece: prompts attend a layer in pieces. layer_bytes: K and V of the widest layer, which has `n_head_kv` heads."""
    return lib.edgekv_piece_heads(layer_bytes, n_head_kv)


def device_margin(total_bytes: int, has_display: bool) -> int:
    """Bytes that a plan with an automatic budget leaves to the driver, CUDA graphs, other programs and a screen."""
    return lib.edgekv_device_margin(total_bytes, has_display)


def _native(layer: LayerSize):
    mode, *others = layer
    return ffi.new("edgekv_layer_size *", (_MODES[mode], *others))
