"""A pass: one mode decodes some tokens from the cache as it is, from a state of its own that starts the same way for every mode.

Modes have memory (what was attended lately, which pages are in the arena), so they cannot take turns token by token. Each pass
begins with a few steps of full attention, not measured, in which the mode's policy sees the same attention as every other mode's;
what it learned in an earlier pass is forgotten first. The first step of the mode itself is not timed: a change of mode rebuilds
the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from edgekv.amounts import size
from edgekv.config import KvOptions
from edgekv.hierarchy.stats import Stats
from edgekv.lab.engine.modes import BenchMode
from edgekv.lab.engine.tally import added
from edgekv.live.runtime import Runtime
from edgekv.memory.available import available_bytes
from edgekv.memory.fit import COMPUTE_BYTES
from edgekv.models import Geometry
from edgekv.rates.measuring.contexts import ContextError, beside, decoder_of
from edgekv.rates.measuring.decoder import Decoder
from edgekv.reports import SelectionReport
from edgekv.vocab import CacheType, KvMode

BATCH_TOKENS = 512

WARMUP_TOKENS = 16
"""Steps of full attention before the mode's own: the half-life of the moving average is about 6.6 tokens."""


@dataclass(frozen=True)
class Caches:
    """The type and page size of a context's K and V."""

    type_k: CacheType = CacheType.F16
    type_v: CacheType = CacheType.F16
    page_tokens: int | None = None
    """None: as EDGEKV_PAGE_TOKENS says, else the default."""

    def does_not_fit(self, model: Geometry, n_ctx: int) -> str | None:
        """Why a context of `n_ctx` tokens cannot be had, or None."""
        needed = model.kv_bytes(n_ctx, self.type_k.value, self.type_v.value) + COMPUTE_BYTES
        free = available_bytes()
        if needed <= free:
            return None
        return f"does not fit: it needs {size(needed)} and {size(free)} are free"


def opened(model: Path, caches: Caches, n_ctx: int, n_threads: int, flash_attn: bool = True,
           n_batch: int = BATCH_TOKENS) -> AbstractContextManager[Decoder]:
    """`decoder_of` an empty context of these caches, stock until a mode is set; it computes up to `n_batch` tokens at once."""
    return decoder_of(model, kv=KvMode.OFF, page_tokens=caches.page_tokens, type_k=caches.type_k, type_v=caches.type_v,
                      flash_attn=flash_attn, n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_batch, n_threads=n_threads)


def own(mode: BenchMode, decoder: Decoder, model: Geometry, caches: Caches, n_ctx: int) -> AbstractContextManager[Decoder]:
    """A context for a mode that does not alternate, beside that of `decoder`. Raises ContextError where it cannot be had."""
    if not mode.flash_attn and caches.type_v != CacheType.F16:
        raise ContextError(f"llama.cpp needs flash attention for a {caches.type_v.value} V cache")
    if note := caches.does_not_fit(model, n_ctx):
        raise ContextError(f"a second context {note}")
    return beside(decoder, n_ctx, mode.flash_attn)


def read(decoder: Decoder, tokens: Sequence[int], n_threads: int, n_batch: int = BATCH_TOKENS) -> Iterator[int]:
    """Decode `tokens` in batches on `n_threads`, yielding the position after each batch."""
    decoder.set_threads(n_threads)
    for first in range(0, len(tokens), n_batch):
        decoder.decode(tokens[first : first + n_batch])
        yield decoder.position


def warm_up(decoder: Decoder, mode: BenchMode, base: KvOptions, tokens: Sequence[int]) -> None:
    """Put the context in `mode`, from the state that `tokens` leave when they are decoded one by one with full attention. One that
    EdgeKV is not attached to decodes them with stock's."""
    runtime = decoder.kv
    if runtime is None:
        for token in tokens:
            decoder.decode([token])
        return
    options = mode.options(base, decoder.position + len(tokens))
    runtime.configure(options.with_(policy="none"))  # a policy begins anew when it changes
    runtime.configure(options)
    runtime.configure(options.with_(mode=KvMode.EXACT, observe=True))
    for token in tokens:
        decoder.decode([token])
    runtime.configure(options)


@dataclass
class Pass:
    """What a mode did: logits of every step [n_vocab], seconds and counters of the timed ones (all but the first)."""

    logits: list[np.ndarray] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    selection: SelectionReport = SelectionReport()


def decode(decoder: Decoder, tokens: Sequence[int], keep_logits: bool) -> Pass:
    """Decode `tokens` one by one in the mode that is in force."""
    done = Pass()
    stats, selection = _counters(decoder.kv)
    for i, token in enumerate(tokens):
        if i == 1:
            stats, selection = _counters(decoder.kv)
        seconds = decoder.decode([token])
        if i:
            done.seconds.append(seconds)
        if keep_logits:
            done.logits.append(decoder.logits())
    after = _counters(decoder.kv)
    done.stats, done.selection = added(after[0], stats, -1), added(after[1], selection, -1)
    return done


def _counters(runtime: Runtime | None) -> tuple[Stats, SelectionReport]:
    """As they are now; nothing is counted where EdgeKV is not attached."""
    return (Stats(), SelectionReport()) if runtime is None else (replace(runtime.stats), runtime.selection())


def weights_alone(decoder: Decoder, tokens: Sequence[int]) -> list[float]:
    """Seconds of each step but the first, each with nothing in the cache but its own token: what is left of a step's time when
    attention costs nothing."""
    seconds = []
    for token in tokens:
        decoder.rewind(0)
        seconds.append(decoder.decode([token]))
    return seconds[1:]


def memory_figures(runtime: Runtime | None) -> dict[str, int]:
    """Bytes of what mode sparse keeps besides the cache, of that which there is."""
    if runtime is None:
        return {}
    memory = runtime.memory()
    kept = {"sketch_bytes": memory.sketch_bytes, "arena_bytes": memory.arena_bytes}
    return {name: n for name, n in kept.items() if n}


def hooked_note(runtime: Runtime) -> str | None:
    layers = runtime.layers
    stock = [layer for layer in layers if not layer.hooked]
    return f"{len(stock)} of {len(layers)} layers run stock in every mode: {stock[0].reason}" if stock else None
