"""Which context fits in memory: asked before a model is loaded, because Linux grants memory it does not have and kills later."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from edgekv.errors import DoesNotFit
from edgekv.models import Geometry
from edgekv.vocab import CacheType

CONTEXT_STEP = 256
"""llama.cpp rounds a context up to a multiple of this many tokens."""

COMPUTE_BYTES = 256 << 20
"""Set aside for llama.cpp's work buffers; they grow with the vocabulary, not with the context."""


@dataclass(frozen=True)
class ContextChoice:
    """Tokens of context of one sequence, the bytes of its KV cache, and a sentence where it is not what was asked for."""

    n_ctx: int
    kv_bytes: int
    note: str | None = None


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


def choose_context(
    model: Geometry,
    n_ctx: int | None,
    type_k: CacheType,
    type_v: CacheType,
    n_sequences: int = 1,
    available: int | None = None,
) -> ContextChoice:
    """The context to open, in tokens for each of `n_sequences` sequences.

    `n_ctx` None means what the model was trained for, as far as half of the free memory allows. A larger one than the model was
    trained for is cut to that. Raises DoesNotFit if the cache of the context asked for, before any cut, is larger than the free
    memory (`available` bytes; None: ask the machine).
    """
    available = available_bytes() if available is None else available

    def kv_bytes(n: int) -> int:
        return n_sequences * model.kv_bytes(n, type_k.value, type_v.value)

    def largest(budget: int) -> int:
        low, high = 0, _rounded(model.n_ctx_train) // CONTEXT_STEP
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if kv_bytes(middle * CONTEXT_STEP) <= budget else (low, middle - 1)
        return low * CONTEXT_STEP

    if n_ctx is None:
        n = min(model.n_ctx_train, largest(max(available - COMPUTE_BYTES, 0) // 2))
        if n < min(model.n_ctx_train, CONTEXT_STEP):
            raise DoesNotFit(f"there is no memory for a context: {_gib(available)} are free; close other programs")
        note = None
        if n < model.n_ctx_train:
            note = (f"the context is {n:,} tokens of the {model.n_ctx_train:,} the model was trained for, "
                    f"to leave half of the free {_gib(available)} alone (--ctx sets another)")
        return ContextChoice(n, kv_bytes(n), note)
    if kv_bytes(_rounded(n_ctx)) + COMPUTE_BYTES > available:
        best = min(largest(available - COMPUTE_BYTES), model.n_ctx_train)
        needed = _gib(kv_bytes(_rounded(n_ctx)))
        raise DoesNotFit(
            f"a context of {n_ctx:,} tokens needs {needed} for its KV cache and {_gib(available)} are free; "
            + (f"use --ctx {best} or less" if best else "close other programs")
        )
    if n_ctx > model.n_ctx_train:
        n = model.n_ctx_train
        return ContextChoice(n, kv_bytes(n), f"the model was trained for {n:,} tokens; the context is that, not {n_ctx:,}")
    return ContextChoice(n_ctx, kv_bytes(n_ctx))


def _rounded(n: int) -> int:
    return -(-n // CONTEXT_STEP) * CONTEXT_STEP


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 30):.1f} GiB"
