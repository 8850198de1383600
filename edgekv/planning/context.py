"""Chooses the context to open, before a model is loaded: Linux grants memory that it does not have, and swaps or kills later. It counts as
`edgekv plan` does, and refuses what does not fit there."""

from edgekv.common.enums import KvMode
from edgekv.common.errors import ConfigError, DoesNotFit
from edgekv.common.units import MIB, MOST_TOKENS, size
from edgekv.planning.allocations import HOST, NATIVE_BYTES, ContextRequest
from edgekv.planning.fit import CONTEXT_STEP, ContextChoice, check_types, kv_bytes, largest_context, page_bytes, rounded, sparse_layers
from edgekv.planning.home import no_space

ENDLESS = 1 << 20
"""Tokens of a conversation in mode evict that nobody gave a length. Its server keeps their numbers, 4 bytes each."""


def choose_context(request: ContextRequest) -> ContextChoice:
    """The context to open, in tokens for each slot.

    Without a length it is the trained context, or as much of that as fits into half of the memory that the weights leave. A longer one is cut
    to the trained context. In mode evict, whose memory does not grow with the context, it is any length, without one ENDLESS, if the model's
    keys can turn. Raises DoesNotFit if the context, after such a cut, needs more than is free; ConfigError if all
    slots together have more than MOST_TOKENS, if the arena's budget holds no page, or if a type cannot hold the model's heads.
    """
    model, kv = request.shape, request.kv
    check_types(model, kv.cache)
    if request.room is not None:
        from edgekv.planning.device_fit import choose_device_context

        kept = request.store_bytes + request.in_flight_bytes + request.later_bytes
        return choose_device_context(model, request.n_ctx, kv, request.room, request.slots.n, max(0, request.available - kept))
    _check_budget(request)
    if kv.mode is KvMode.EVICT and model.turns and (request.n_ctx or request.fits(ENDLESS, kv)):
        n = request.n_ctx or ENDLESS
        if n * request.slots.n > MOST_TOKENS:
            raise ConfigError(f"{request.slots.n} slots of {n:,} tokens are more than {MOST_TOKENS:,} in all; "
                              f"use --ctx {MOST_TOKENS // request.slots.n} or less")
        check_context(request, n)
        return ContextChoice(n, kv_bytes(model, n, kv, request.slots.n), None)
    if request.n_ctx is None:
        return _automatic(request)
    n, note = min(request.n_ctx, model.n_ctx_train), None
    check_context(request, n)
    if n < request.n_ctx:
        note = f"the model was trained for {n:,} tokens; the context is that, not {request.n_ctx:,}"
    return ContextChoice(n, kv_bytes(request.shape, n, request.kv, request.slots.n), note)


def check_context(request: ContextRequest, n_ctx: int) -> None:
    """Raise DoesNotFit if a context of `n_ctx` tokens for each slot does not fit in host memory; the message says which would fit."""
    n, kv, available = rounded(n_ctx), request.kv, request.available
    if (on_disk := request.on_disk(n, kv)) > (disk_free := request.disk_free):
        best = min(largest_context(lambda n: request.fits(n, kv), request.shape.n_ctx_train), request.shape.n_ctx_train)
        assert kv.cache.kv_dir is not None
        raise no_space(kv.cache.kv_dir, n_ctx, on_disk, disk_free,
                       f"use --ctx {best} or less, or another folder" if best else "name a folder on another disk")
    needed = request.needed(n, kv)
    if needed <= available:
        return
    fixed, free = _without_context(request), f"{size(available)} are free"
    if fixed + NATIVE_BYTES > available:
        raise DoesNotFit(_no_model(request, fixed))
    arena, what = kv_bytes(request.shape, n, kv, request.slots.n).arena, _what(request)
    if kv.placement.kv_budget and needed - arena <= available:
        room = (available - needed + arena) // MIB
        raise DoesNotFit(f"a KV budget of {size(kv.placement.kv_budget)} does not fit beside the {size(needed - arena)} that a context of "
                         f"{n_ctx:,} tokens takes anyway, and {free}; use --kv-budget {room}MiB or less")
    best = min(largest_context(lambda n: request.fits(n, kv), request.shape.n_ctx_train), request.shape.n_ctx_train)
    raise DoesNotFit(f"a context of {n_ctx:,} tokens needs {size(needed)} ({what}), and {free}: {size(needed - available)} are missing; "
                     + (f"use --ctx {best} or less" if best else "close other programs, or take a smaller model") + _store(request, needed))


def _automatic(request: ContextRequest) -> ContextChoice:
    model, kv = request.shape, request.kv
    fixed = _without_context(request) + NATIVE_BYTES
    room = (request.available - fixed) // 2
    disk_room = request.disk_free // 2
    n = min(model.n_ctx_train, largest_context(lambda n: request.needed(n, kv) - fixed <= room and request.on_disk(n, kv) <= disk_room,
                                               model.n_ctx_train))
    if n < min(model.n_ctx_train, CONTEXT_STEP):
        if room <= 0:
            raise DoesNotFit(_no_model(request, fixed - NATIVE_BYTES))
        n = min(model.n_ctx_train, CONTEXT_STEP)
        check_context(request, n)  # a small context is better than none
    note = None
    if n < model.n_ctx_train:
        there = "" if kv.cache.kv_dir is None else f", and of the {size(request.disk_free)} in {kv.cache.kv_dir}"
        note = (f"the context is {n:,} tokens of the {model.n_ctx_train:,} the model was trained for, to leave half of the "
                f"{size(request.available - fixed)} alone that are free beside the weights{there} (--ctx sets another)")
    return ContextChoice(n, kv_bytes(request.shape, n, request.kv, request.slots.n), note)


def _without_context(request: ContextRequest) -> int:
    """Bytes of host memory that every context needs: weights, models loaded later, the prefix store."""
    return sum(part.bytes for part in request.parts(CONTEXT_STEP, request.kv)
               if part.place == HOST and part.name in ("weights", "loaded later", "prefix store", "prefixes in flight"))


def _what(request: ContextRequest) -> str:
    """The counted parts, as a list in words."""
    weights = [] if request.from_disk else ["weights"]
    cache = ["KV cache"] if request.kv.cache.kv_dir is None else []
    ours = ["sketches"] if request.kv.mode is KvMode.SPARSE or request.kv.samples_kept else []
    return ", ".join([*weights, "work buffers", *cache, *ours])


def _no_model(request: ContextRequest, fixed: int) -> str:
    weights = 0 if request.from_disk else request.shape.tensor_bytes
    free = f"{size(request.available)} are free"
    if weights <= request.available:
        text = f"there is no memory for a context: {size(fixed)} go to the weights and what is kept beside them, and {free}; close other programs"
        return text + _store(request, fixed + NATIVE_BYTES)
    return (f"the weights take {size(weights)} and {free}: they would be read from the disk for every token; close other programs, take a "
            "smaller model or a smaller type of weights, or --weights-from-disk where slow is better than nothing")


def _store(request: ContextRequest, needed: int) -> str:
    kept = request.store_bytes + request.in_flight_bytes
    if not kept or needed - kept > request.available:
        return ""
    return f"; {size(kept)} of memory are set aside for kept prefixes (--cache-ram)"


def _check_budget(request: ContextRequest) -> None:
    kv, budget = request.kv, request.kv.placement.kv_budget
    if kv.cache.kv_dir is not None and budget and sparse_layers(request.shape) and budget < (page := page_bytes(request.shape, kv.cache)):
        raise ConfigError(f"the KV budget is {budget:,} bytes, and one page of this model takes {page:,}; give more, auto, or 0 for none")
