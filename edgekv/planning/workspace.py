"""The memory of pages, sketches and our kernels, by the model's header, and the heads that have kernels. The library knows both, and is loaded
when it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edgekv.common.enums import KvMode
from edgekv.config import KvOptions
from edgekv.models import Geometry

if TYPE_CHECKING:
    from edgekv._native.sizes import LayerSize


def table_bytes(model: Geometry, layers: list[int], n_streams: int, n_cells: int, page_tokens: int, n_slots: int = 0) -> int:
    """The library's tables of the pages of these layers, `n_streams` streams and an arena of `n_slots` slots."""
    from edgekv._native import sizes

    n_heads = max((model.n_head_kv[il] for il in layers), default=0)
    return sizes.table_bytes(len(layers), n_heads, n_streams, n_cells, page_tokens, n_slots)


def kept_cells(n_cells: int, keep_tokens: int, by_layer: bool, n_trained: int) -> int:
    """Cells of a cache with K and V of `keep_tokens` tokens: more than these, if layers can give rows back and so keep different tokens."""
    from edgekv._native import sizes

    return sizes.kept_cells(n_cells, keep_tokens, by_layer, n_trained)


def sketch_bytes(model: Geometry, layers: list[int], n_cells: int, kv: KvOptions) -> int:
    """The sketches of these layers and one stream."""
    from edgekv._native import sizes

    return sum(map(sizes.sketch_bytes, _sizes(model, layers, n_cells, kv)))


def step_bytes(model: Geometry, layers: list[int], n_cells: int, kv: KvOptions, n_threads: int) -> int:
    """Buffers between the nodes for a stream's longest step. All layers use them in turn."""
    from edgekv._native import sizes

    return max(map(sizes.step_bytes, set(_sizes(model, layers, n_cells, kv, n_threads))), default=0)


def prompt_bytes(model: Geometry, layers: list[int], n_cells: int, kv: KvOptions, n_threads: int) -> int:
    """Scratch of `n_threads` that read a prompt in a context of `n_cells`, whether prompts are sampled or not."""
    from edgekv._native import sizes

    return max(map(sizes.prompt_bytes, set(_sizes(model, layers, n_cells, kv, n_threads))), default=0)


def slot_bytes(row_bytes: int, page_tokens: int) -> int:
    """A slot of the arena, for pages whose tokens take `row_bytes` of K and V in a head."""
    from edgekv._native import sizes

    return sizes.slot_bytes(row_bytes, page_tokens)


def _sizes(model: Geometry, layers: list[int], n_cells: int, kv: KvOptions, n_threads: int = 1) -> Iterator[LayerSize]:
    sketches = kv.mode is not KvMode.EVICT or kv.samples_kept
    for il in layers:
        yield (kv.mode, sketches, model.n_head[il], model.n_head_kv[il], model.head_dim_k, model.head_dim_v if model.mla else 0, model.index_rows,
               n_cells, kv.cache.page_size, n_threads)
