"""The memory of a context's KV cache, from the shape of a model alone."""

from __future__ import annotations

import sys
from bisect import bisect
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from edgekv.common.enums import KvMode
from edgekv.common.errors import ConfigError
from edgekv.common.units import MIB, MOST_TOKENS, size
from edgekv.config import CacheOptions, Keep, KvOptions
from edgekv.models import Geometry
from edgekv.models.geometry import block_numbers
from edgekv.models.inspector import CONTEXT_STEP, rounded
from edgekv.planning.workspace import kept_cells, sketch_bytes, slot_bytes, step_bytes, table_bytes

if TYPE_CHECKING:
    from edgekv.planning.device_fit import DevicePlan

COMPUTE_BYTES = 256 * MIB
"""Bytes set aside for llama.cpp's work buffers on the host, beside those of a GPU."""

PAGE_BYTES = {KvMode.EXACT: 7, KvMode.SPARSE: 31, KvMode.EVICT: 35}
"""Bytes for one page of one layer and KV head besides the library's tables: its state and slot in Python, its scores if pages are ranked,
and data about a slot."""


class KvBytes(Struct, frozen=True):
    """Bytes of the KV cache: home for every layer, the rest for the layers that modes sparse and evict serve."""

    home: int
    sketches: int = 0
    tables: int = 0
    arena: int = 0
    workspace: int = 0
    """Work space of a step, which all layers use in turn; it grows with the context."""

    @property
    def fixed(self) -> int:
        """Bytes without the arena, whose size a person chooses."""
        return self.home + self.sketches + self.tables + self.workspace

    @property
    def total(self) -> int:
        return self.fixed + self.arena


class ContextChoice(Struct, frozen=True):
    """The context of one sequence in tokens, the KV bytes of all sequences, and a note if it is not the requested context."""

    n_ctx: int
    bytes: KvBytes
    note: str | None = None
    device: DevicePlan | None = None
    """None: everything is in host memory."""

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V alone."""
        return self.bytes.home


def sparse_layers(model: Geometry) -> list[int]:
    """Layers that mode sparse can serve: those with a plain KV cache and a head size that has a kernel. Compressed KV (MLA) and layers that attend
    the cells of an index are served on the processor."""
    return [il for il, state in enumerate(model.states) if state == "hooked"]


def unifies(model: Geometry, kv: KvOptions, n_slots: int, on_gpu: bool) -> bool:
    """Whether the slots of a server share one cache unless told otherwise: what their tokens begin with in common lies there once, and no token
    reads another slot's. That holds for layers of pages on the processor; stock nodes would read the cells of all slots."""
    return (n_slots > 1 and kv.mode in (KvMode.EXACT, KvMode.SPARSE) and not on_gpu and not model.mla and not model.index_rows
            and not model.recurrent_bytes and 0 < sum(map(bool, model.k_numbers)) == len(sparse_layers(model)))


def whole_layers(model: Geometry) -> list[int]:
    """Layers that EdgeKV attends whole in every mode, on the processor: their windows slide, or they have ALiBi."""
    return [il for il, state in enumerate(model.states) if state in ("window", "biased")]


def plain_layers(model: Geometry) -> list[int]:
    """Those of `sparse_layers` whose V has rows of its own, and which attend without an index: mode evict and a GPU serve only
    these."""
    return [] if model.mla or model.index_rows else sparse_layers(model)


def check_types(model: Geometry, cache: CacheOptions) -> None:
    """Raise ConfigError where a head's row of K or of V is not whole blocks of its type."""
    for name, kind in (("K", cache.type_k.value), ("V", cache.type_v.value)):
        if odd := model.not_held(kind, name == "V"):
            raise ConfigError(f"{kind} keeps {name} in blocks of {block_numbers(kind)} numbers, and a head of {model.path.name} has {odd}; "
                              f"use --cache-type-{name.lower()} f16")


def page_bytes(model: Geometry, cache: CacheOptions) -> int:
    """Bytes of one page in the arena. The model must have `sparse_layers`."""
    return slot_bytes(head_row_bytes(model, cache), cache.page_size)


def head_row_bytes(model: Geometry, cache: CacheOptions) -> int:
    """Bytes of K and V of one token in one KV head, the same in all layers. The model must have KV heads."""
    layers = range(model.n_layer)
    return sum(model.layer_kv_bytes(il, *cache.kinds) for il in layers) // sum(model.n_head_kv)


def in_tokens(model: Geometry, kv: KvOptions) -> KvOptions:
    """The options with `keep` in tokens: mode evict keeps as many as the bytes hold, in multiples of 256. Raises ConfigError."""
    if kv.mode is not KvMode.EVICT or not kv.eviction.evict_to.bytes:
        return kv
    per_token = model.kv_bytes_per_token(*kv.cache.kinds)
    n_tokens = kv.eviction.evict_to.bytes // max(1, per_token) // CONTEXT_STEP * CONTEXT_STEP
    if n_tokens < CONTEXT_STEP:
        raise ConfigError(f"{size(kv.eviction.evict_to.bytes)} hold fewer than {CONTEXT_STEP} tokens of this model, {per_token:,} bytes each; "
                          f"keep at least {size(CONTEXT_STEP * per_token)}")
    return kv.with_(evict_to=Keep(min(n_tokens, MOST_TOKENS)))


def kept(n_ctx: int, kv: KvOptions) -> int:
    """Tokens of a context of `n_ctx` whose K and V have memory, with these options, whose `keep` is in tokens."""
    return min(rounded(n_ctx), rounded(kv.keep_tokens)) if kv.mode is KvMode.EVICT else n_ctx


def cells(model: Geometry, n_ctx: int, kv: KvOptions) -> int:
    """Cells of a context of `n_ctx` tokens: in mode evict more than are `kept`, where each layer keeps its own tokens."""
    if kv.mode is not KvMode.EVICT:
        return n_ctx
    return kept_cells(rounded(n_ctx), kv.keep_tokens, gives_back(model), model.n_ctx_train)


def gives_back(model: Geometry) -> bool:
    """Whether each layer can give the memory of its rows back to the system: all have rows of their own, in growing memory (Linux)."""
    return sys.platform.startswith("linux") and "shared" not in model.states and "biased" not in model.states


def kv_bytes(model: Geometry, n_ctx: int, kv: KvOptions, n_sequences: int = 1, n_threads: int = 1) -> KvBytes:
    """Bytes of the KV cache of `n_sequences` sequences of `n_ctx` tokens each, attended by `n_threads`."""
    home = model.kv_bytes(kept(n_ctx, kv), *kv.cache.kinds, n_sequences)
    n_ctx = cells(model, n_ctx, kv)
    layers = {KvMode.SPARSE: sparse_layers(model), KvMode.EVICT: plain_layers(model)}.get(kv.mode)
    if not layers:
        return KvBytes(home)
    tables = paging_bytes(model, layers, n_ctx, kv, n_sequences)
    if kv.mode is KvMode.EVICT and not kv.samples_kept:
        return KvBytes(home, tables=tables)
    n_pages = -(-n_ctx // kv.cache.page_size)  # of a sequence
    return KvBytes(
        home,
        sketches=n_sequences * sketch_bytes(model, layers, n_pages * kv.cache.page_size, kv),
        tables=tables,
        arena=0 if kv.cache.kv_dir is None else _rows_bytes(model, n_sequences * n_pages, sum(model.n_head_kv[il] for il in layers), kv),
        workspace=n_sequences * step_bytes(model, layers, n_ctx, kv, n_threads),
    )


def paging_bytes(model: Geometry, layers: list[int], n_cells: int, kv: KvOptions, n_sequences: int) -> int:
    """Bytes of the tables of these layers' pages, in the library and in Python, for `n_sequences` caches of `n_cells` cells."""
    n_pages = n_sequences * -(-n_cells // kv.cache.page_size)
    beside = PAGE_BYTES[kv.mode] * n_pages * sum(model.n_head_kv[il] for il in layers)
    return table_bytes(model, layers, n_sequences, n_cells, kv.cache.page_size) + beside


def _rows_bytes(model: Geometry, n_pages: int, n_heads: int, kv: KvOptions) -> int:
    """Bytes for copies of rows of a home on disk that has `n_pages` pages of all sequences in each of `n_heads` KV heads."""
    return min(kv.placement.kv_budget or 0, n_pages * n_heads * page_bytes(model, kv.cache))


def largest_context(fits: Callable[[int], bool], most: int) -> int:
    """The largest context in tokens, up to `most` rounded, for which `fits(n)` is true; 0: none. `fits` must hold for all smaller ones too."""
    return CONTEXT_STEP * bisect(range(1, rounded(most) // CONTEXT_STEP + 1), 0, key=lambda n: not fits(n * CONTEXT_STEP))


class LayerService(Struct, frozen=True):
    il: int
    served: bool
    """Whether mode sparse serves it."""
    whole: bool
    """On the processor EdgeKV attends it whole in every mode."""
    reason: str
    n_head: int
    n_head_kv: int


def layers(model: Geometry) -> list[LayerService]:
    served, whole = set(sparse_layers(model)), set(whole_layers(model))
    kind = ("compressed KV (MLA)" if model.mla else "plain KV cache") + (", an index lists what it attends" if model.index_rows else "")
    return [LayerService(il, il in served, il in whole, kind if il in served else _why_not(model, il), model.n_head[il], model.n_head_kv[il])
            for il in range(model.n_layer)]


def _why_not(model: Geometry, il: int) -> str:
    if model.swa[il]:
        return f"{model.reasons[il]} ({model.sliding_window:,} tokens)"
    if model.states[il] != "head_dim":
        return model.reasons[il]
    return f"{model.reasons[il]}: K has {model.head_dim_k} numbers and V {model.head_dim_v}"
