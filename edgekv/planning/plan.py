"""The plan of a context before anything is loaded: its memory, the context that fits, its speed, the mode to take and why. It is made from
the model's header, this machine's free memory and its measured rates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from edgekv.common.enums import KvMode
from edgekv.common.errors import DoesNotFit
from edgekv.common.machine import default_threads
from edgekv.common.units import size
from edgekv.config import KvOptions
from edgekv.models.geometry import ModelFile
from edgekv.planning.allocations import HOST, NATIVE_BYTES, ContextRequest, MemoryPart, Slots, home_bytes, total
from edgekv.planning.context import choose_context
from edgekv.planning.device_roofline import DeviceRoofline, prefers_sparse
from edgekv.planning.fit import ContextChoice, in_tokens, kept, kv_bytes, largest_context, rounded, sparse_layers, whole_layers
from edgekv.planning.host import HostRates
from edgekv.planning.roofline import DEPTHS, LEAST_TOKENS_PER_S, HostRoofline, Speed, depth_at

if TYPE_CHECKING:
    from edgekv._native.device_calls import Rates

GAINS_FROM = 2048
"""Up to about this depth attention takes a small part of a token's time, with most models and kernels."""

_SHORT = f"up to about {GAINS_FROM:,} tokens attention is a small part of a token"

USER_TOKENS = 4096
"""Tokens of a conversation, for counting how many fit."""

LONGEST = 1 << 22
"""The longest context that is considered, in tokens."""

_FALLBACK = 4096
_NOTHING = 1.1
"""Gains over stock below this factor are noise."""

_MODES = (KvMode.OFF, KvMode.EXACT, KvMode.SPARSE)


class Limit(Struct, frozen=True):
    """The longest contexts of a mode on this machine."""

    mode: str
    fits_tokens: int
    """The longest context of each slot that fits into memory; LONGEST: that or more."""
    readable_tokens: int | None
    """The estimated depth at which decoding falls below LEAST_TOKENS_PER_S; None: not within LONGEST tokens, or unknown."""


class Plan(Struct, frozen=True):
    """Everything that `edgekv plan` says, in bytes, tokens and tokens/s."""

    model: str
    architecture: str
    file_type: str
    n_params: int
    n_ctx_train: int
    kv_bytes_per_token: int
    mode: str
    n_ctx: int
    n_slots: int
    place: str
    free: dict[str, int]
    """Free bytes by place."""
    parts: tuple[MemoryPart, ...]
    problem: str | None
    """The reason if it does not fit; None: it fits."""
    limits: tuple[Limit, ...]
    users: int
    """Conversations of USER_TOKENS whose K and V fit beside everything else."""
    speeds: tuple[Speed, ...]
    served_layers: int
    n_layer: int
    recommended: str
    why: str
    sentence: str
    """EdgeKV's effect on the limit of this machine, in words."""
    flags: tuple[str, ...]
    notes: tuple[str, ...]
    start_bytes: int = 0
    """Host memory that is taken at the start, before any token."""
    token_bytes: int = 0
    """Host memory that a token takes when it comes, on average."""
    busy: float = 0.0
    """Cores that other programs kept busy during the measurements; above 0.0 speeds, and all that follows from them, are a guess."""
    whole_layers: int = 0
    """Layers that EdgeKV attends whole in every mode, on the processor: their windows slide, or they have ALiBi."""

    def total(self, place: str = HOST) -> int:
        return total(self.parts, place)


def make_plan(request: ContextRequest, host: HostRates | None, device: Rates | None = None) -> Plan:
    """Make a plan. host, device: measured rates; None: the plan has no speeds. Raises ConfigError."""
    shape, kv = request.shape, in_tokens(request.shape, request.kv)
    request = replace(request, kv=kv)
    choice, problem = _context(request)
    n_ctx = choice.n_ctx
    notes = [choice.note] if choice.note else []
    if request.from_disk:
        notes.append("the speeds here do not include reading weights from the disk")
    if kv.mode is KvMode.SPARSE and kv.selection.lacks_head_errors:
        notes.append(f"speeds of mode sparse are those of sample budget {kv.selection.sample_budget:,.15g}: the budgets for an error are measured when the "
                     "model is first opened with it")
    parts = tuple(request.parts(n_ctx, request.with_hot_rows(n_ctx, kv)))
    if request.room is not None and (home := sum(part.bytes for part in parts if part.name == "KV home")):
        k, v = shape.head_row_bytes(kv.cache.type_k.value, kv.cache.type_v.value)
        notes.append(f"a conversation that rolls on (--when-full roll) waits while its keys go to the GPU, are turned there and come back, "
                     f"{size(home * k // (k + v))} each way when it is full")
    place = HOST if request.room is None else request.room.name
    roofline = _roofline(request, kv, host, device)
    speeds = () if roofline is None else tuple(roofline(mode, depth) for depth in sorted({*DEPTHS, n_ctx}) for mode in _MODES)
    limits = tuple(_limits(request, kv, roofline))
    recommended, why = _recommend(request, n_ctx, roofline, limits)
    start, each = _growth(request, n_ctx, kv)
    free = {HOST: request.available} | ({place: request.room.free} if request.room is not None else {})
    if kv.cache.kv_dir is not None:
        free[str(kv.cache.kv_dir)] = request.disk_free
    return Plan(
        model=str(shape.path), architecture=shape.architecture, file_type=shape.file_type, n_params=shape.n_params, n_ctx_train=shape.n_ctx_train,
        kv_bytes_per_token=shape.kv_bytes_per_token(*kv.cache.kinds), mode=kv.mode.value, n_ctx=n_ctx,
        n_slots=request.slots.n, place=place, free=free, parts=parts, problem=problem, limits=limits, users=users(request, kv), speeds=speeds,
        served_layers=len(sparse_layers(shape)), n_layer=shape.n_layer, recommended=recommended.value, why=why,
        start_bytes=start, token_bytes=each, sentence=_sentence(request, limits), flags=tuple(_flags(request, n_ctx, recommended)), notes=tuple(notes),
        busy=0.0 if host is None or request.room is not None else host.busy, whole_layers=0 if request.room is not None else len(whole_layers(shape)))


def users(request: ContextRequest, kv: KvOptions, n_tokens: int = USER_TOKENS) -> int:
    """Conversations of `n_tokens` tokens whose K and V fit beside all fixed parts: in the memory of a GPU without EdgeKV, otherwise in host
    memory."""
    each = home_bytes(request.shape, n_tokens, kv)
    fixed = [part for part in request.parts(n_tokens, kv.with_(mode=KvMode.OFF)) if not part.name.startswith("KV")]
    if request.room is not None and kv.mode is KvMode.OFF:
        return max(0, request.room.free - total(fixed, request.room.name)) // each if each else 0
    room = request.disk_free if kv.cache.kv_dir is not None else max(0, request.available - total(fixed) - NATIVE_BYTES)
    return room // each if each else 0


def _growth(request: ContextRequest, n_ctx: int, kv: KvOptions) -> tuple[int, int]:
    """Bytes of host memory at the start, and for each token then. What a GPU's driver pins at once is taken at the start, and so are the first tokens'
    K and V on others, and what does not follow the tokens."""
    whole = request.needed(n_ctx, kv)
    if request.room is not None and not request.room.pins_later:
        return whole, 0
    n_tokens = request.slots.n * kept(n_ctx, kv)
    follow = sum(part.bytes for part in request.parts(n_ctx, kv) if part.name in ("KV home", "sketches", "tables") and part.place == HOST)
    each = -(-follow // n_tokens)
    if request.room is None or not each:
        return whole - follow, each
    from edgekv.planning.device_fit import device_plan, tokens_at_start

    plan = device_plan(request.shape, n_ctx, kv, request.room, request.slots.n)
    first = tokens_at_start(rounded(request.slots.caches[1] * n_ctx), each, kv, plan.n_ubatch)
    return whole - follow + min(first * each, follow), each


def _context(request: ContextRequest) -> tuple[ContextChoice, str | None]:
    """The context to open, and why it does not fit; None: it fits."""
    try:
        return choose_context(request), None
    except DoesNotFit as error:
        n_ctx = min(request.n_ctx or _FALLBACK, request.shape.n_ctx_train)
        return ContextChoice(n_ctx, kv_bytes(request.shape, n_ctx, request.kv, request.slots.n)), str(error)


# ---- how fast -------------------------------------------------------------------------------------------------------------------


def _roofline(request: ContextRequest, kv: KvOptions, host: HostRates | None, device: Rates | None) -> Callable[[KvMode, int], Speed] | None:
    if request.room is not None:
        return DeviceRoofline(request.model, kv, request.room, device, request.slots.n).speed if device is not None else None
    return HostRoofline(request.model, kv, host).speed if host is not None else None


def _limits(request: ContextRequest, kv: KvOptions, roofline: Callable[[KvMode, int], Speed] | None) -> Iterator[Limit]:
    for mode in _MODES:
        options = kv.with_(mode=mode, **({"kv_vram": None, "kv_dir": None} if mode is KvMode.OFF else {}))
        yield Limit(mode.value, largest_context(partial(request.fits, kv=options), LONGEST), None if roofline is None else
                    depth_at(LEAST_TOKENS_PER_S, partial(_decode, roofline, mode), LONGEST))


def _decode(roofline: Callable[[KvMode, int], Speed], mode: KvMode, depth: int) -> float:
    return roofline(mode, depth).decode or 0.0


# ---- conclusions ----------------------------------------------------------------------------------------------------------------


def _recommend(request: ContextRequest, n_ctx: int, roofline: Callable[[KvMode, int], Speed] | None, limits: tuple[Limit, ...]) -> tuple[KvMode, str]:
    served = sparse_layers(request.shape)
    if request.kv.mode is KvMode.EVICT:
        return KvMode.EVICT, f"it keeps {kept(n_ctx, request.kv):,} tokens, however long the conversation becomes; no speed of it is estimated"
    if not served and request.room is None and whole_layers(request.shape):
        return KvMode.EXACT, "EdgeKV attends its layers whole in every mode: none has pages to choose from"
    if not served:
        return KvMode.OFF, "no layer has a KV cache that EdgeKV can serve: stock llama.cpp runs all of them"
    fitting = {KvMode(limit.mode) for limit in limits if limit.fits_tokens >= rounded(n_ctx)}
    if request.room is not None:
        if KvMode.OFF in fitting:
            return KvMode.OFF, f"K and V of {n_ctx:,} tokens fit into GPU memory: nothing is to be gained"
        apart = "K and V do not fit into GPU memory"
        if roofline is None:
            return KvMode.EXACT, f"{apart}; exact loses nothing (no speeds were measured here)"
        exact, sparse = (roofline(mode, n_ctx).decode for mode in (KvMode.EXACT, KvMode.SPARSE))
        if prefers_sparse(exact, sparse):
            return KvMode.SPARSE, f"{apart}, and at {n_ctx:,} tokens sparse decodes {sparse:.1f} tokens/s by estimate, exact {exact or 0:.1f}"
        return KvMode.EXACT, f"{apart}; exact loses nothing, and sparse gains little by estimate"
    if n_ctx <= GAINS_FROM and roofline is None:
        return KvMode.OFF, f"{_SHORT}: little or nothing is gained, any mode will do (no speeds were measured here)"
    if KvMode.SPARSE not in fitting and KvMode.EXACT in fitting:
        return KvMode.EXACT, "the sketches of mode sparse do not fit beside the cache"
    if roofline is None:
        return KvMode.SPARSE, "it reads a small part of the context for each token (no speeds were measured here)"
    speeds = {mode: roofline(mode, n_ctx).decode or 0.0 for mode in _MODES}
    best = max((KvMode.EXACT, KvMode.SPARSE), key=speeds.__getitem__)
    times = speeds[best] / speeds[KvMode.OFF]
    if times < _NOTHING:
        why = f"{_SHORT}, and nothing is gained" if n_ctx <= GAINS_FROM else "the weights take most of a token's time"
        return KvMode.OFF, f"at {n_ctx:,} tokens {best.value} is {times:.2f}x stock by estimate: {why}"
    return best, f"at {n_ctx:,} tokens it decodes {times:.1f}x as fast as stock by estimate, {speeds[best]:.1f} tokens/s"


def _sentence(request: ContextRequest, limits: tuple[Limit, ...]) -> str:
    of = {limit.mode: limit for limit in limits}
    stock, ours = of[KvMode.OFF.value], of[(KvMode.EXACT if request.room is not None else KvMode.SPARSE).value]
    if request.room is not None:
        return (f"without EdgeKV this machine would stop at {_tokens(stock.fits_tokens)}, where {request.room.name} is full; with it at "
                f"{_tokens(ours.fits_tokens)}, where host memory is")
    text = (f"K and V lie on a disk: {_tokens(ours.fits_tokens)} fit in mode sparse, {_tokens(stock.fits_tokens)} with stock in memory."
            if request.kv.cache.kv_dir is not None else
            f"on a processor K and V lie in the same memory with EdgeKV and without: {_tokens(stock.fits_tokens)} fit with stock, "
            f"{_tokens(ours.fits_tokens)} in mode sparse, whose sketches lie beside them.")
    depths = [(name, of[mode].readable_tokens) for name, mode in (("stock", "off"), ("exact", "exact"), ("sparse", "sparse"))]
    slower = [f"{name} {f'at {depth:,} tokens' if depth else 'from the start'}" for name, depth in depths if depth is not None]
    if slower:
        text += f" The limit is speed: by estimate a token takes more than {1 / LEAST_TOKENS_PER_S:g} s with {', with '.join(slower)}"
    return text


def _tokens(n: int) -> str:
    return "no context" if not n else f"{n:,} tokens" + (" and more" if n >= LONGEST else "")


def _flags(request: ContextRequest, n_ctx: int, mode: KvMode) -> Iterator[str]:
    yield from ("--ctx", str(n_ctx), "--kv", mode.value)
    if request.slots.n > 1:
        yield from ("--parallel", str(request.slots.n))
    if request.n_threads != default_threads():
        yield from ("--threads", str(request.n_threads))
    if request.from_disk:
        yield "--weights-from-disk"
    yield from request.later
    if mode is KvMode.EVICT:
        yield from ("--evict-to", str(request.kv.eviction.evict_to))
    if mode is KvMode.SPARSE and (error := request.kv.selection.target_error) is not None:
        yield from ("--target-error", f"{100 * error:g}%")
    cache = request.kv.cache
    if cache.kv_bytes is not None:
        yield from ("--kv-bytes", str(cache.kv_bytes or "auto"))
    for name, kind in () if cache.kv_bytes is not None else (("--cache-type-k", cache.type_k.value), ("--cache-type-v", cache.type_v.value)):
        if kind != "f16":
            yield from (name, kind)
    if cache.kv_dir is not None:
        yield from ("--kv-dir", str(cache.kv_dir))
    yield from ("--attention-device", "cpu" if request.room is None else "cuda")


def fitting_context(model: ModelFile, available: int) -> int:
    """Tokens, up to the trained context, that fit on the host in mode exact; 0 if not even the weights fit."""
    exact, n_train = KvOptions(mode=KvMode.EXACT), model.geometry.n_ctx_train
    request = ContextRequest(model, exact, None, Slots(), available, n_threads=default_threads())
    return min(n_train, largest_context(lambda n: request.fits(n, exact), n_train))
