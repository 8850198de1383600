"""Which context fits in memory: asked before a model is loaded, because Linux grants memory it does not have and kills later."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from edgekv.amounts import MIB, size
from edgekv.config import AUTO_ARENA, CacheOptions, Keep, KvOptions
from edgekv.errors import ConfigError, DoesNotFit
from edgekv.models import Geometry
from edgekv.vocab import MAX_QUERY_TOKENS, KvMode, SketchKind

CONTEXT_STEP = 256
"""llama.cpp rounds a context up to a multiple of this many tokens."""

COMPUTE_BYTES = 256 * MIB
"""Set aside for llama.cpp's work buffers; they grow with the vocabulary, not with the context."""

TABLE_BYTES = 48
"""Bytes for one page of one layer and KV head: priority, pin, slot, mass and score, in the library and in Python."""

_HEAD_DIMS = (64, 72, 80, 96, 112, 128, 192, 256, 512)  # the kernels there are; the library has the last word
_VECTOR_BYTES = 64
_ROW_BYTES = 8  # in a list of rows: the cell and its weight
_TILE_ROWS = 64  # of a list, which leave the sum of their values, and their own weights, for each query head
_SHARE_BYTES = 2  # of a cell in a query head's attention


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
        """All but the arena, which could be smaller."""
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
    """KV heads of all layers whose pages it holds."""
    page_tokens: int
    n_ubatch: int
    """Prompt tokens that are computed at once."""

    @property
    def room(self) -> int:
        """What the model leaves free; negative where it does not fit itself."""
        return self.free - self.weights - self.compute - self.others

    @property
    def fixed(self) -> int:
        """All of the budget that is not arena."""
        return self.sketches + self.tables + self.scratch + self.staging + self.ring

    @property
    def missing(self) -> int:
        """By how much the budget is too small: it must hold one page of each head besides."""
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
    """None: all of it is in host memory."""

    @property
    def kv_bytes(self) -> int:
        """K and V alone."""
        return self.bytes.home


def available_bytes() -> int:
    """Memory that can still be had: the machine's, or what is left of this process's control group."""
    available = psutil.virtual_memory().available
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        root = Path("/sys/fs/cgroup")
        try:
            left = int((root / limit).read_text()) - int((root / used).read_text())
        except (OSError, ValueError):  # no such control group, or "max"
            continue
        available = min(available, max(0, left))
    return available


def sparse_layers(model: Geometry) -> list[int]:
    """Layers that mode sparse can serve, as far as the file tells: a plain KV cache, and a head size there is a kernel for."""
    if model.mla or model.head_dim_k != model.head_dim_v or model.head_dim_k not in _HEAD_DIMS:
        return []
    return [il for il in range(model.n_layer) if model.n_head_kv[il] and not model.swa[il]]


def page_bytes(model: Geometry, cache: CacheOptions) -> int:
    """Bytes of one page in the arena, of a model that has `sparse_layers`."""
    return -(-(head_row_bytes(model, cache) * cache.page_tokens) // _VECTOR_BYTES) * _VECTOR_BYTES


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


def kv_bytes(model: Geometry, n_ctx: int, kv: KvOptions, n_sequences: int = 1) -> KvBytes:
    """Bytes of the KV cache of `n_sequences` sequences of `n_ctx` tokens each."""
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
        sketches=n_sequences * _sketch_bytes(kv.selection.sketch, model.head_dim_k, n_heads, n_pages * kv.cache.page_tokens),
        tables=n_sequences * n_heads * n_pages * TABLE_BYTES,
        arena=_arena_bytes(model, n_sequences * n_pages, n_heads, kv),
        workspace=n_sequences * max(_step_bytes(model, il, n_ctx, kv.selection.sketch) for il in layers),
    )


def _sketch_bytes(kind: SketchKind, head_dim: int, n_heads: int, n_cells: int) -> int:
    """Bytes for `n_heads` heads and one stream. The library knows the layout, and is loaded only here."""
    from edgekv._native.paging import sketch_bytes

    return sketch_bytes(kind, head_dim, n_heads, n_cells)


def _step_bytes(model: Geometry, il: int, n_cells: int, kind: SketchKind) -> int:
    """What the longest step of a stream leaves between its nodes: for each of its tokens and each KV head of a layer the shares of all
    cells, a list of rows that may name all of them, and what the rows of each tile came to (native: host/select.cpp, attend/attend.cpp)."""
    group = model.n_head[il] // model.n_head_kv[il]
    shares = 0 if kind is SketchKind.NONE else _SHARE_BYTES * group
    values = -(-4 * model.head_dim_v // _VECTOR_BYTES) * _VECTOR_BYTES
    tile = group * (4 * _TILE_ROWS + values) + -(-8 * group // _VECTOR_BYTES) * _VECTOR_BYTES
    return MAX_QUERY_TOKENS * model.n_head_kv[il] * (n_cells * (_ROW_BYTES + shares) + -(-n_cells // _TILE_ROWS) * tile)


def _arena_bytes(model: Geometry, n_pages: int, n_heads: int, kv: KvOptions) -> int:
    """Whole slots. `n_pages` of each of `n_heads` KV heads are all there are (those of several sequences together)."""
    page = page_bytes(model, kv.cache)
    return arena_bytes(kv.placement.kv_budget, n_pages * n_heads * page) // page * page


def arena_bytes(kv_budget: int | None, kv_bytes: int) -> int:
    """Bytes that the budget (None: automatic) allows the arena of a context whose K and V take `kv_bytes`."""
    return math.ceil(AUTO_ARENA * kv_bytes) if kv_budget is None else min(kv_budget, kv_bytes)


def choose_context(
    model: Geometry, n_ctx: int | None, kv: KvOptions, n_sequences: int = 1, available: int | None = None
) -> ContextChoice:
    """The context to open, in tokens for each of `n_sequences` sequences.

    `n_ctx` None means what the model was trained for, as far as half of the free memory allows. A larger one than the model was
    trained for is cut to that. Raises DoesNotFit if the cache of the context asked for, before any cut, is larger than the free
    memory (`available` bytes; None: ask the machine), ConfigError if the arena's budget holds no page.
    """
    available = available_bytes() if available is None else available
    _check_budget(model, kv)

    def needed(n: int) -> KvBytes:
        return kv_bytes(model, n, kv, n_sequences)

    def largest(budget: int) -> int:
        return largest_context(lambda n: needed(n).total <= budget, model.n_ctx_train)

    if n_ctx is None:
        n = min(model.n_ctx_train, largest(max(available - COMPUTE_BYTES, 0) // 2))
        if n < min(model.n_ctx_train, CONTEXT_STEP):
            raise DoesNotFit(f"there is no memory for a context: {size(available)} are free; close other programs")
        note = None
        if n < model.n_ctx_train:
            note = (f"the context is {n:,} tokens of the {model.n_ctx_train:,} the model was trained for, "
                    f"to leave half of the free {size(available)} alone (--ctx sets another)")
        return ContextChoice(n, needed(n), note)
    wanted, room = needed(rounded(n_ctx)), available - COMPUTE_BYTES
    if wanted.total > room:
        free = f"{size(available)} are free"
        if wanted.fixed <= room and kv.placement.kv_budget is not None:
            raise DoesNotFit(f"a KV budget of {size(kv.placement.kv_budget)} does not fit beside the {size(wanted.fixed)} that a context "
                             f"of {n_ctx:,} tokens takes anyway, and {free}; "
                             f"use --kv-budget {(room - wanted.fixed) >> 20}MiB or less")
        best = min(largest(room), model.n_ctx_train)
        what = "KV cache, its sketches and arena" if kv.mode is KvMode.SPARSE else "KV cache"
        raise DoesNotFit(f"a context of {n_ctx:,} tokens needs {size(wanted.total)} for its {what} and {free}; "
                         + (f"use --ctx {best} or less" if best else "close other programs"))
    if n_ctx > model.n_ctx_train:
        n = model.n_ctx_train
        return ContextChoice(n, needed(n), f"the model was trained for {n:,} tokens; the context is that, not {n_ctx:,}")
    return ContextChoice(n_ctx, needed(n_ctx))


def largest_context(fits: Callable[[int], bool], most: int) -> int:
    """The largest context, in tokens, up to `most` rounded, of which `fits(n)` holds; 0 for none. What fits one fits smaller ones."""
    low, high = 0, rounded(most) // CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * CONTEXT_STEP) else (low, middle - 1)
    return low * CONTEXT_STEP


def _check_budget(model: Geometry, kv: KvOptions) -> None:
    budget = kv.placement.kv_budget
    if kv.mode is KvMode.SPARSE and budget and sparse_layers(model) and budget < page_bytes(model, kv.cache):
        raise ConfigError(f"the KV budget is {budget:,} bytes, and one page of this model takes {page_bytes(model, kv.cache):,}; "
                          "give more, auto, or 0 for no arena")


def rounded(n: int) -> int:
    """Tokens of the context that llama.cpp makes of `n`."""
    return -(-n // CONTEXT_STEP) * CONTEXT_STEP
