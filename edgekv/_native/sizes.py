"""Bytes of what a context will take, asked of the library before there is one."""

from dataclasses import dataclass

from edgekv._native._core import ffi, lib
from edgekv._native.core import _MODES, SKETCHES
from edgekv.vocab import KvMode, SketchKind


@dataclass(frozen=True)
class LayerSize:
    """A layer that EdgeKV attends on the host. Its heads have a size that a kernel serves."""

    mode: KvMode
    sketch: SketchKind
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


@dataclass(frozen=True)
class PagesSize:
    """The pages of a context on the host."""

    n_layers: int
    n_heads: int
    """The most KV heads of any of these layers."""
    n_streams: int
    n_cells: int
    """Cells of a stream."""
    page_tokens: int
    n_slots: int
    """Slots of the arena."""


def table_bytes(pages: PagesSize) -> int:
    """Page table, priorities, attention mass, and what is known of cells and pins: the same in every mode."""
    return lib.edgekv_table_bytes(ffi.new("edgekv_pages_size *", vars(pages)))


def serves_heads(n_head: int, n_head_kv: int, head_dim_k: int, head_dim_v: int, v_in_k: bool) -> bool:
    """Whether there are kernels for a layer with these heads and a cache in f16. v_in_k: the first channels of a row of K are its V."""
    return lib.edgekv_serves_heads(n_head, n_head_kv, head_dim_k, head_dim_v, v_in_k)


def sketch_bytes(layer: LayerSize) -> int:
    """Sketches of the layer and one stream."""
    return lib.edgekv_sketch_bytes(_native(layer))


def step_bytes(layer: LayerSize) -> int:
    """What the longest step of a stream writes between its nodes while mass is observed. All layers use it in turn."""
    return lib.edgekv_step_bytes(_native(layer))


def prompt_bytes(layer: LayerSize) -> int:
    """Scratch of all threads that read a prompt."""
    return lib.edgekv_prompt_bytes(_native(layer))


def slot_bytes(row_bytes: int, page_tokens: int) -> int:
    """A slot of the arena, for pages whose tokens take `row_bytes` of K and V in a head."""
    return lib.edgekv_slot_bytes(row_bytes, page_tokens)


def _native(layer: LayerSize):
    return ffi.new("edgekv_layer_size *", vars(layer) | {"mode": _MODES[layer.mode], "sketch": SKETCHES[layer.sketch]})
