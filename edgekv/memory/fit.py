"""What the KV cache of a context takes, from the shape of a model alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgekv.amounts import MIB, size
from edgekv.config import CacheOptions, Keep, KvOptions
from edgekv.errors import ConfigError
from edgekv.memory.workspace import sketch_bytes, slot_bytes, step_bytes
from edgekv.models import Geometry
from edgekv.vocab import KvMode

CONTEXT_STEP = 256
"""llama.cpp rounds a context up to a multiple of this many tokens."""

COMPUTE_BYTES = 256 * MIB
"""Set aside for llama.cpp's work buffers where `memory.compute` has no formula, and on the host where a GPU computes."""

TABLE_BYTES = 48
"""Bytes for one page of one layer and KV head: priority, pin, slot, mass and score, in the library and in Python."""

_HEAD_DIMS = (64, 72, 80, 96, 112, 128, 192, 256, 512)  # the kernels there are; the library has the last word


@dataclass(frozen=True)
class KvBytes:
    """What the KV cache takes: home for every layer; the rest, in mode sparse, for the layers that are attended sparsely."""

    home: int
    sketches: int = 0
    tables: int = 0
    arena: int = 0
    workspace: int = 0
    """The work space of a step, which all layers use in turn; it grows with the context."""

    @property
    def fixed(self) -> int:
        """Bytes without the arena, whose size a person chooses."""
        return self.home + self.sketches + self.tables + self.workspace

    @property
    def total(self) -> int:
        return self.fixed + self.arena


@dataclass(frozen=True)
class DevicePlan:
    """What a context takes of a device's memory, in bytes, as far as it can be told before anything is loaded."""

    n_ctx: int
    """Tokens of each of `n_sequences` sequences."""
    n_sequences: int
    free: int
    """Before the model is loaded."""
    weights: int
    compute: int
    """llama.cpp's work buffers."""
    others: int
    """KV caches that llama.cpp keeps on the device: sliding windows, and all of them in mode off."""
    budget: int
    """For all that follows."""
    sketches: int
    tables: int
    """Page table, priority, pins, attention mass."""
    scratch: int
    """What selection and attention write between them, once for all layers."""
    staging: int
    """Prompts are attended in it: K and V of one layer, `n_staged` times."""
    n_staged: int
    ring: int
    """Mode exact: what cold pages stream through."""
    arena: int
    home: int
    """Bytes of the pages, in host memory."""
    slot_bytes: int
    n_heads: int
    """KV heads whose pages it holds, of all layers."""
    page_tokens: int
    n_ubatch: int
    """Prompt tokens that are computed at once."""

    @property
    def room(self) -> int:
        """What the model leaves free; negative where the model itself does not fit."""
        return self.free - self.weights - self.compute - self.others

    @property
    def fixed(self) -> int:
        """The budget without the arena."""
        return self.sketches + self.tables + self.scratch + self.staging + self.ring

    @property
    def missing(self) -> int:
        """Bytes that the budget lacks: it must also hold one page of each head."""
        return max(0, self.fixed + self.n_heads * self.slot_bytes - self.budget)

    @property
    def hot_tokens(self) -> int:
        """Tokens of context whose pages the arena holds, of all layers and heads alike."""
        if not self.n_heads:
            return 0
        return min(self.n_ctx * self.n_sequences, self.arena // (self.slot_bytes * self.n_heads) * self.page_tokens)


@dataclass(frozen=True)
class ContextChoice:
    """Tokens of context of one sequence, the bytes of the KV cache of all, and a sentence where it is not what was asked for."""

    n_ctx: int
    bytes: KvBytes
    note: str | None = None
    device: DevicePlan | None = None
    """None: everything is in host memory."""

    @property
    def kv_bytes(self) -> int:
        """K and V alone."""
        return self.bytes.home


def sparse_layers(model: Geometry) -> list[int]:
    """Layers that mode sparse can serve, as far as the file tells: a plain KV cache, and a head size there is a kernel for."""
    if model.mla or model.head_dim_k != model.head_dim_v or model.head_dim_k not in _HEAD_DIMS:
        return []
    return [il for il in range(model.n_layer) if model.n_head_kv[il] and not model.swa[il]]


def page_bytes(model: Geometry, cache: CacheOptions) -> int:
    """Bytes of one page in the arena, of a model that has `sparse_layers`."""
    return slot_bytes(head_row_bytes(model, cache), cache.page_tokens)


def head_row_bytes(model: Geometry, cache: CacheOptions) -> int:
    """Bytes of K and V of one token in one KV head, of a model that has KV heads; those of all layers are alike."""
    return model.kv_bytes_per_token(cache.type_k.value, cache.type_v.value) // sum(model.n_head_kv)


def in_tokens(model: Geometry, kv: KvOptions) -> KvOptions:
    """The options with what mode evict keeps in tokens: as many cells as the bytes hold, in multiples of 256. Raises ConfigError."""
    if kv.mode is not KvMode.EVICT or not kv.eviction.keep.bytes:
        return kv
    per_token = model.kv_bytes_per_token(kv.cache.type_k.value, kv.cache.type_v.value)
    n_tokens = kv.eviction.keep.bytes // max(1, per_token) // CONTEXT_STEP * CONTEXT_STEP
    if n_tokens < CONTEXT_STEP:
        raise ConfigError(f"{size(kv.eviction.keep.bytes)} hold fewer than {CONTEXT_STEP} tokens of this model, {per_token:,} bytes each; "
                          f"keep at least {size(CONTEXT_STEP * per_token)}")
    return kv.with_(keep=Keep(n_tokens))


def cells(n_ctx: int, kv: KvOptions) -> int:
    """Cells of a context of `n_ctx` tokens that is created with these options; `kv` says what it keeps in tokens."""
    return min(rounded(n_ctx), rounded(kv.keep_tokens)) if kv.mode is KvMode.EVICT else n_ctx


def kv_bytes(model: Geometry, n_ctx: int, kv: KvOptions, n_sequences: int = 1, n_threads: int = 1) -> KvBytes:
    """Bytes of the KV cache of `n_sequences` sequences of `n_ctx` tokens each, attended by `n_threads`."""
    n_ctx = cells(n_ctx, kv)
    home = n_sequences * model.kv_bytes(n_ctx, kv.cache.type_k.value, kv.cache.type_v.value)
    layers = sparse_layers(model) if kv.mode in (KvMode.SPARSE, KvMode.EVICT) else []
    if not layers:
        return KvBytes(home)
    n_heads = sum(model.n_head_kv[il] for il in layers)
    n_pages = -(-n_ctx // kv.cache.page_tokens)  # of a sequence
    if kv.mode is KvMode.EVICT:
        return KvBytes(home, tables=n_sequences * n_heads * n_pages * TABLE_BYTES)
    return KvBytes(
        home,
        sketches=n_sequences * sketch_bytes(model, layers, n_pages * kv.cache.page_tokens, kv),
        tables=n_sequences * n_heads * n_pages * TABLE_BYTES,
        arena=_arena_bytes(model, n_sequences * n_pages, n_heads, kv),
        workspace=n_sequences * step_bytes(model, layers, n_ctx, kv, n_threads),
    )


def _arena_bytes(model: Geometry, n_pages: int, n_heads: int, kv: KvOptions) -> int:
    """Whole slots. `n_pages` of each of `n_heads` KV heads are all there are (those of several sequences together)."""
    page = page_bytes(model, kv.cache)
    return arena_bytes(kv.placement.kv_budget, n_pages * n_heads * page) // page * page


def arena_bytes(kv_budget: int | None, kv_bytes: int) -> int:
    """Bytes that the budget (None: no arena) allows the arena in host memory of a context whose K and V take `kv_bytes`."""
    return min(kv_budget or 0, kv_bytes)


def largest_context(fits: Callable[[int], bool], most: int) -> int:
    """The largest context, in tokens, up to `most` rounded, of which `fits(n)` holds; 0 for none. What fits one fits smaller ones."""
    low, high = 0, rounded(most) // CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * CONTEXT_STEP) else (low, middle - 1)
    return low * CONTEXT_STEP


def rounded(n: int) -> int:
    """The length that llama.cpp makes of a context of `n` tokens."""
    return -(-n // CONTEXT_STEP) * CONTEXT_STEP
