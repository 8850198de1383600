"""The GPU memory of a context, before a model is loaded: EdgeKV's part as the native library allocates it, llama.cpp's estimated."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import asdict, replace

from edgekv.common.enums import CacheType, KvMode
from edgekv.common.errors import DoesNotFit
from edgekv.common.reports import DeviceBytes
from edgekv.common.units import MIB, size
from edgekv.config import KvOptions
from edgekv.models import Geometry
from edgekv.planning.available import available_bytes
from edgekv.planning.fit import (
    COMPUTE_BYTES,
    CONTEXT_STEP,
    ContextChoice,
    KvBytes,
    head_row_bytes,
    kv_bytes,
    largest_context,
    page_bytes,
    plain_layers,
    rounded,
)

UBATCH_TOKENS = (2048, 1024, 512)
"""Prompt tokens that are computed at once; the largest that fits is taken. Pages without a slot cross the link for each ubatch, so twice as
many tokens halve a prompt's cost there, and double llama.cpp's work buffers. The last is llama.cpp's default."""

COMPUTE_SHARE = 1 / 8
"""Longer ubatches than the shortest may take this share of the memory beside the weights for work buffers."""

DRAFT_TOKENS = 16
"""Most tokens of a sequence that get logits at once."""

DEFAULT_TOKENS = 32768
"""Most tokens of an automatic context: all of its K and V are pinned in host memory, which other programs cannot have; at the start that takes seconds."""

PART_BYTES, PART_TOKENS = 64 << 20, 256
"""K and V that are pinned at a time where a driver pins as tokens come: most bytes, if that is at most an eighth of the context, and least tokens."""

LEAST_HOT_TOKENS = 768
"""Least tokens in the arena of an automatic context: about as many as a head reads."""


class DeviceRoom(Struct, frozen=True):
    """The memory of a device before a model is loaded, in bytes."""

    name: str
    total: int
    free: int
    holds_model: bool = True
    """Weights and work buffers lie there too; an emulated device has pages only."""
    n_sm: int = 128
    """Multiprocessors: scratch grows with them."""
    has_display: bool = False
    pins_later: bool = False
    """K and V take host memory, and are pinned there, as tokens come; else at the start."""

    def less(self, n_bytes: int) -> DeviceRoom:
        """What is left when something else takes `n_bytes`."""
        return replace(self, free=max(0, self.free - n_bytes))


class DevicePlan(DeviceBytes, frozen=True):
    """Estimated bytes of a context in a device's memory, before anything is loaded."""

    n_ctx: int
    """Tokens of each of `n_sequences` sequences."""
    n_sequences: int
    free: int
    """Free bytes before the model is loaded."""
    weights: int
    compute: int
    """llama.cpp's work buffers."""
    others: int
    """KV caches that llama.cpp keeps on the device: sliding windows, and all of them in mode off."""
    home: int
    """Bytes of the pages, in host memory."""
    slot_bytes: int
    n_heads: int
    """KV heads with pages on the device, of all layers."""
    page_tokens: int
    n_ubatch: int
    """Prompt tokens that are computed at once."""

    @property
    def room(self) -> int:
        """Bytes that the model leaves free; negative if the model itself does not fit."""
        return self.free - self.weights - self.compute - self.others

    @property
    def fixed(self) -> int:
        """Bytes of the budget's parts without the arena."""
        return self.sketches + self.tables + self.scratch + self.staging + self.ring

    @property
    def missing(self) -> int:
        """Bytes that the budget lacks for `fixed` and one page of each head."""
        return max(0, self.fixed + self.n_heads * self.slot_bytes - self.budget)

    @property
    def hot_tokens(self) -> int:
        """Tokens whose pages fit into the arena, shared evenly by all layers and heads."""
        if not self.n_heads:
            return 0
        return min(self.n_ctx * self.n_sequences, self.arena // (self.slot_bytes * self.n_heads) * self.page_tokens)


def tokens_at_start(n_cells: int, token_bytes: int, kv: KvOptions, n_ubatch: int) -> int:
    """Tokens of `n_cells` whose K and V are pinned when a context opens, where a driver pins as tokens come. With an automatic budget it reads a ubatch and a
    token more, to see what memory is left."""
    part = max(min(PART_BYTES // token_bytes, n_cells // 8) // PART_TOKENS * PART_TOKENS, PART_TOKENS)
    n = 1 if kv.placement.kv_vram is not None or kv.mode is KvMode.OFF else min(n_ubatch, n_cells - 1) + 1
    for unit in (PART_TOKENS, kv.cache.page_size, part):
        n = -(-n // unit) * unit
    return min(n, n_cells)


def margin_bytes(total: int, has_display: bool = False) -> int:
    """Bytes that an automatic budget leaves free for the driver, CUDA graphs, other programs and a screen."""
    from edgekv._native import sizes

    return sizes.device_margin(total, has_display)


def compute_bytes(model: Geometry, n_ctx: int, n_tokens: int, n_outputs: int, kv: KvOptions) -> int:
    """Bytes of llama.cpp's work buffers for `n_tokens` prompt tokens at `n_ctx` tokens of context: for each token its f16 mask and about twelve
    f32 activations as wide as the residual stream; for `n_outputs` tokens f32 logits of the vocabulary; and the f16 copies of quantised K and V that
    its CUDA backend's flash attention makes for more than two tokens, of all heads of a layer or of a piece."""
    copies = copied_bytes(model, n_ctx, kv)
    return n_tokens * (2 * n_ctx + 12 * 4 * model.n_embd) + min(n_tokens, n_outputs) * 4 * model.n_vocab + copies


def copied_bytes(model: Geometry, n_ctx: int, kv: KvOptions) -> int:
    """Of `compute_bytes`, the f16 copies of K and V."""
    from edgekv._native import sizes

    cache = kv.cache
    dims = sum(dim for dim, kind in ((model.head_dim_k, cache.type_k), (model.head_dim_v, cache.type_v)) if kind is not CacheType.F16)
    served = set(plain_layers(model)) if kv.mode is not KvMode.OFF else set()
    n_heads = max((n for il, n in enumerate(model.n_head_kv) if il not in served), default=0)
    if widest := max((model.n_head_kv[il] for il in served), default=0):
        n_heads = max(n_heads, sizes.piece_heads(n_ctx * widest * head_row_bytes(model, cache), widest))
    return n_ctx * n_heads * dims * 2


def device_plan(model: Geometry, n_ctx: int, kv: KvOptions, room: DeviceRoom, n_sequences: int = 1, all_logits: bool = False) -> DevicePlan:
    """The plan for `n_sequences` sequences of `n_ctx` tokens, with the longest ubatch that fits. It may not fit: see `DevicePlan.missing` and
    `room`. all_logits: every token of a batch may get logits, as in llama_cpp; llama.cpp's server gives them to the last ones."""
    copies = copied_bytes(model, n_ctx * n_sequences, kv)
    for n_ubatch in UBATCH_TOKENS if kv.mode is not KvMode.OFF else UBATCH_TOKENS[-1:]:
        plan = _plan(model, n_ctx, kv, room, n_sequences, n_ubatch, n_ubatch if all_logits else DRAFT_TOKENS * n_sequences)
        fits = not plan.missing and plan.room >= (kv.placement.kv_vram or 0)
        if fits and plan.compute - copies <= COMPUTE_SHARE * (room.free - plan.weights):
            break
    return plan


def _plan(model: Geometry, n_ctx: int, kv: KvOptions, room: DeviceRoom, n_sequences: int, n_ubatch: int, n_outputs: int) -> DevicePlan:
    layers = plain_layers(model) if kv.mode is not KvMode.OFF else []
    n_heads = sum(model.n_head_kv[il] for il in layers)
    n_cells = n_ctx * n_sequences
    home = n_cells * n_heads * head_row_bytes(model, kv.cache) if layers else 0
    compute = compute_bytes(model, n_cells, min(n_ubatch, n_cells), n_outputs, kv) if room.holds_model else 0
    weights = model.tensor_bytes if room.holds_model else 0
    others = kv_bytes(model, n_ctx, kv, n_sequences).home - home if room.holds_model else 0
    ours = _device_bytes(model, layers, n_ctx, kv, room, n_sequences, room.free - weights - others, compute)
    return DevicePlan(
        **asdict(ours), n_ctx=n_ctx, n_sequences=n_sequences, free=room.free, weights=weights, compute=compute, others=others, home=home,
        slot_bytes=page_bytes(model, kv.cache) if layers else 0, n_heads=n_heads, page_tokens=kv.cache.page_size, n_ubatch=n_ubatch)


def _device_bytes(model: Geometry, layers: list[int], n_ctx: int, kv: KvOptions, room: DeviceRoom, n_sequences: int, left: int,
                  compute: int) -> DeviceBytes:
    """What these layers take, where weights and caches leave `left` bytes, and work buffers take `compute` of them."""
    from edgekv._native import sizes

    k, v = model.head_row_bytes(kv.cache.type_k.value, kv.cache.type_v.value)
    heads = [(model.n_head[il], model.n_head_kv[il], model.head_dim_k, k, v) for il in layers]
    return sizes.device_bytes(kv.mode, heads, n_sequences, rounded(n_ctx), kv.cache.page_size, room.n_sm, room.has_display, room.total, max(0, left), compute,
                              kv.placement.kv_vram or 0)


def check_device(model: Geometry, n_ctx: int, kv: KvOptions, room: DeviceRoom, n_sequences: int = 1) -> DevicePlan:
    """The plan of a context. Raises DoesNotFit, which says how much is missing and which options fit."""
    plan = device_plan(model, n_ctx, kv, room, n_sequences)
    beside = f"beside the weights ({size(plan.weights)}) and work buffers ({size(plan.compute)})"
    if plan.room < 0:
        raise DoesNotFit(f"the weights ({size(plan.weights)}), work buffers ({size(plan.compute)}) and the caches that stay "
                         f"on the GPU ({size(plan.others)}) need more than the {size(room.free)} that are free on "
                         f"{room.name}: {size(-plan.room)} are missing; {_fewer_layers(model, plan, room)}")
    if kv.placement.kv_vram is not None and kv.placement.kv_vram > plan.room:
        raise DoesNotFit(f"--kv-vram {size(kv.placement.kv_vram)} is more than {room.name} has free {beside}: "
                         f"{size(kv.placement.kv_vram - plan.room)} are missing; use --kv-vram {plan.room // MIB}MiB or less, or auto")
    if plan.missing:
        has = (f"--kv-vram is {size(kv.placement.kv_vram)}" if kv.placement.kv_vram is not None
               else f"{size(plan.budget)} of {room.name} are to be had {beside}")
        least = least_budget(model, plan, kv, room)
        what = "tables, staging, and a ring for cold pages" if kv.mode is KvMode.EXACT else "sketches, tables and staging"
        ways = ", or ".join(_remedies(model, plan, least, kv, room)) or "--attention-device cpu"
        raise DoesNotFit(f"a context of {n_ctx:,} tokens needs {size(least)} of GPU memory for its {what}, and {has}: "
                         f"{size(least - plan.budget)} are missing; use {ways}")
    return plan


def choose_device_context(
    model: Geometry, n_ctx: int | None, kv: KvOptions, room: DeviceRoom, n_sequences: int = 1, available: int | None = None
) -> ContextChoice:
    """As `context.choose_context`, for pages in host memory, and sketches and arena on a device.

    n_ctx None: the trained context, at most `DEFAULT_TOKENS`, or as much of it as half of the free host memory has pages for and the device holds
    with an arena for `LEAST_HOT_TOKENS`. Raises DoesNotFit, which says what is missing on the host or on the device.
    """
    available = available_bytes() if available is None else available

    def plan(n: int) -> DevicePlan:
        return device_plan(model, n, kv, room, n_sequences)

    def fits(n: int, host: int) -> bool:
        found = plan(n)
        return found.home <= host and found.room >= 0 and not found.missing

    def comfortable(n: int) -> bool:
        found = plan(n)
        return fits(n, max(0, available - COMPUTE_BYTES) // 2) and found.hot_tokens >= min(n * n_sequences, LEAST_HOT_TOKENS)

    n_train = model.n_ctx_train
    if n_ctx is None:
        most = min(n_train, DEFAULT_TOKENS)
        n = min(most, largest_context(comfortable, most))
        if n < min(n_train, CONTEXT_STEP):
            check_device(model, CONTEXT_STEP, kv, room, n_sequences)
            raise DoesNotFit(f"there is no memory for a context: {size(available)} are free on the host and "
                             f"{size(room.free)} on {room.name}; close other programs, or give --ctx")
        why = (f"its K and V are pinned in host memory{'' if room.pins_later else ' at the start'}" if n == most else
               f"more does not fit in half of the free {size(available)} and {size(plan(n).budget)} on {room.name}")
        note = None if n == n_train else f"the context is {n:,} tokens of the {n_train:,} the model was trained for: {why} (--ctx sets another)"
    else:
        room_host = max(0, available - COMPUTE_BYTES)
        n = min(n_ctx, n_train)
        home = plan(rounded(n)).home
        if home > room_host:
            best = min(n_train, largest_context(lambda n: fits(n, room_host), n_train))
            raise DoesNotFit(f"a context of {n:,} tokens needs {size(home)} of host memory for its pages, and "
                             f"{size(available)} are free; " + (f"use --ctx {best} or less" if best else "close other programs"))
        note = None if n == n_ctx else f"the model was trained for {n:,} tokens; the context is that, not {n_ctx:,}"
    chosen = check_device(model, n, kv, room, n_sequences)
    return ContextChoice(n, KvBytes(chosen.home + chosen.others, chosen.sketches, chosen.tables, chosen.arena), note, chosen)


def _fewer_layers(model: Geometry, plan: DevicePlan, room: DeviceRoom) -> str:
    n = int(max(0, room.free - plan.compute - margin_bytes(room.total, room.has_display)) / (plan.weights / (model.n_layer + 1)))
    fewer = f"--gpu-layers {n} leaves the other layers, and EdgeKV's attention, to the processor; "
    return (fewer if 0 < n <= model.n_layer else "") + "--attention-device cpu does without the GPU"


def least_budget(model: Geometry, plan: DevicePlan, kv: KvOptions, room: DeviceRoom) -> int:
    """The smallest budget for the context of a plan with `missing` bytes, in bytes of whole MiB. Ring and staging grow with the budget, and a
    longer ring needs less scratch."""
    def fits(n: int) -> bool:
        return not device_plan(model, plan.n_ctx, kv.with_(kv_vram=n * MIB), room, plan.n_sequences).missing

    low, high = plan.budget // MIB, -(-(plan.budget + plan.missing) // MIB)  # the first does not fit
    while not fits(high):
        low, high = high, 2 * high
    return (low + 1 + bisect(range(low + 1, high), 0, key=fits)) * MIB


def _remedies(model: Geometry, plan: DevicePlan, least: int, kv: KvOptions, room: DeviceRoom) -> Iterator[str]:
    """Options that each make a plan with `missing` bytes fit."""
    def fits(n_ctx: int, options: KvOptions) -> bool:
        found = device_plan(model, n_ctx, options, room, plan.n_sequences)
        return found.room >= 0 and not found.missing and found.budget <= found.room

    if fits(plan.n_ctx, kv.with_(kv_vram=least)):
        yield f"--kv-vram {least // MIB}MiB or more"
    if best := largest_context(lambda n: fits(n, kv), plan.n_ctx - 1):
        yield f"--ctx {best} or less"
    for kind in (CacheType.Q8_0, CacheType.Q4_0):
        small = kv.with_(type_k=kind, type_v=kind)
        if small != kv and model.holds(kind.value) and fits(plan.n_ctx, small):
            yield f"--cache-type-k {kind.value} --cache-type-v {kind.value}"
            break
