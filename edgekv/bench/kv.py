"""Decode speed and fidelity of KV modes, in one run on the same tokens.

For each context the text is read in once, up to each depth in turn. From there on every mode decodes the same tokens of the text
(teacher-forced) in passes of its own (edgekv.bench.passes); the passes take turns, so that all modes see the same machine, warm
or busy. Predictions are compared on the first round: with stock's, and with those of full attention in our kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekv import _native
from edgekv.bench.decoder import Decoder
from edgekv.bench.measured import Measured
from edgekv.bench.modes import FULL, STOCK, BenchMode, find_mode, in_order
from edgekv.bench.passes import (
    BATCH_TOKENS, WARMUP_TOKENS, Caches, ContextError, decode, hooked_note, memory_figures, opened, read, warm_up,
)
from edgekv.bench.text import Text
from edgekv.config import KvOptions
from edgekv.errors import ConfigError
from edgekv.machine import n_cores
from edgekv.models import Geometry, geometry
from edgekv.vocab import CacheType

FIGURES = (
    "decode_ms_p50", "decode_ms_p10", "decode_ms_p90", "ratio_vs_stock", "ratio_paired", "growth_fraction", "prefill_tps", "nll",
    "nll_vs_stock", "nll_vs_exact", "kld_stock", "kld_exact", "same_top_stock", "same_top_exact", "attended_fraction", "coverage",
    "hit_rate", "hit_rate_mass", "fallback_fraction", "moved_bytes_per_step", "overhead_fraction", "sketch_bytes", "arena_bytes",
)
"""What is measured. ratio_vs_stock divides the medians; ratio_paired is the median of the ratios at each position;
growth_fraction says how much longer a step takes than at the smallest depth. attended_fraction, hit_rate and the like are over
all timed steps, as the runtime counts them; coverage is its estimate; overhead_fraction is the Python layer's part of a step."""

Row = dict[str, Any]
Progress = Callable[[str, int, int], None]
"""Called with what is being done, the steps done so far and their number."""


@dataclass(frozen=True)
class KvBench:
    """What to measure. Every combination of text, cache types, threads and depth gives one row for each mode."""

    model: Path
    texts: tuple[Text, ...]
    depths: tuple[int, ...] = (512, 4096, 7680)
    threads: tuple[int, ...] = (1,)
    cache_types: tuple[tuple[CacheType, CacheType], ...] = ((CacheType.F16, CacheType.F16),)
    modes: tuple[str, ...] = (STOCK, FULL)
    n_steps: int = 64  # timed decode steps of a pass
    n_rounds: int = 3  # passes of each mode
    n_warmup: int = WARMUP_TOKENS
    page_tokens: int | None = None
    prefill: bool = False  # compare prefill too; the text is then read from its start for each mode and depth

    def __post_init__(self) -> None:
        for mode in self.modes:
            if find_mode(mode).destructive:
                raise ConfigError(f"{mode} drops what the modes after it would read from the same cache, so it takes no turns here; "
                                  "`edgekv quality` restores the cache for it")
        for name, values in (("depth", self.depths), ("thread count", self.threads), ("number of steps", (self.n_steps,)),
                             ("number of rounds", (self.n_rounds,)), ("number of steps before", (self.n_warmup,))):
            if not values or min(values) < 1:
                raise ConfigError(f"a {name} must be 1 or more")

    @property
    def all_modes(self) -> dict[str, BenchMode]:
        """Stock first, then full attention."""
        return {name: find_mode(name) for name in in_order(self.modes)}

    @property
    def n_tokens(self) -> int:
        """Tokens of text after the depth: those before the pass, its first step, the timed ones, and the last one's successor,
        which only the likelihood needs."""
        return self.n_warmup + 1 + self.n_steps + 1


def run(
    bench: KvBench, progress: Progress = lambda what, done, total: None, warn: Callable[[str], None] = lambda text: None
) -> Iterator[list[Row]]:
    """Yield the rows of one (text, types, threads, depth) at a time, one for each mode, stock first.

    Where something cannot be measured its rows say why under `note`, and the other figures are None.
    """
    if not _native.info()["enabled"]:
        raise ConfigError("EDGEKV=0 is set, so there is only stock attention to measure; unset it")
    model = geometry(bench.model)
    if max(bench.depths) + bench.n_tokens > model.n_ctx_train:
        warn(f"{model.path.name} was trained for {model.n_ctx_train} tokens: beyond them only the times mean something")
    for text in bench.texts:
        for type_k, type_v in bench.cache_types:
            yield from _Run(bench, model, text, Caches(type_k, type_v, bench.page_tokens), progress).rows()


class _Run:
    """One text and one pair of cache types: a context for the modes that alternate, and one for each mode that does not."""

    def __init__(self, bench: KvBench, model: Geometry, text: Text, caches: Caches, progress: Progress):
        self.bench, self.model, self.text, self.caches, self.progress = bench, model, text, caches, progress
        self.modes = {name: mode for name, mode in bench.all_modes.items() if mode.alternates}
        self.apart: dict[str, dict[int, list[np.ndarray]]] = {}  # mode that does not alternate -> depth -> logits of each step
        self.shallow: dict[tuple[int, str], float] = {}  # (threads, mode) -> median time at the smallest depth

    def rows(self) -> Iterator[list[Row]]:
        fitting = []
        for depth in sorted(set(self.bench.depths)):
            note = self.caches.does_not_fit(self.model, depth + self.bench.n_tokens)
            if note is None:
                fitting.append(depth)
            else:
                yield from (self._rows(n_threads, depth, note=note) for n_threads in self.bench.threads)
        if not fitting:
            return
        try:
            yield from self._measure(fitting)
        except ContextError as error:  # an answer, not a failure of the benchmark
            for n_threads in self.bench.threads:
                yield from (self._rows(n_threads, depth, note=str(error)) for depth in fitting)

    def _measure(self, depths: list[int]) -> Iterator[list[Row]]:
        notes = {}
        for name, mode in self.bench.all_modes.items():
            if name not in self.modes:
                try:
                    self.apart[name] = self._logits_of(mode, depths)
                except ContextError as error:
                    notes[name] = str(error)
        n_ctx = depths[-1] + self.bench.n_tokens
        with opened(self.bench.model, self.caches, n_ctx, max(self.bench.threads)) as decoder:
            base = decoder.llama.kv.options
            tokens = self.text.tokens(decoder.llama, n_ctx)
            if tokens:  # brings the weights into memory; not measured
                decoder.decode(tokens[: min(BATCH_TOKENS, depths[0])])
                decoder.rewind(0)
            for n_threads in self.bench.threads:
                for depth in depths:
                    if depth + self.bench.n_tokens > len(tokens):
                        yield self._rows(n_threads, depth, note=f"the text has only {len(tokens)} tokens; give a longer one")
                        continue
                    prefill = self._prefill(decoder, base, tokens[:depth], n_threads)
                    results = self._decode(decoder, base, tokens[depth : depth + self.bench.n_tokens], n_threads)
                    for name, seconds in prefill.items():
                        results[name]["prefill_tps"] = depth / seconds
                    yield self._rows(n_threads, depth, results, note=hooked_note(decoder.llama.kv), notes=notes)

    def _prefill(self, decoder: Decoder, base: KvOptions, tokens: list[int], n_threads: int) -> dict[str, float]:
        """Read `tokens`. Seconds of each mode if prefill is compared; else stock reads on all cores what is not there yet."""
        runtime = decoder.llama.kv
        if not self.bench.prefill:
            runtime.configure(find_mode(STOCK).options(base, len(tokens)))
            decoder.rewind(min(decoder.position, len(tokens)))
            for position in read(decoder, tokens[decoder.position :], n_cores()):
                self.progress("prefill", position, len(tokens))
            return {}
        seconds = {}
        for name, mode in self.modes.items():
            decoder.rewind(0)
            runtime.configure(mode.options(base, len(tokens)))
            began = time.perf_counter()
            for position in read(decoder, tokens, n_threads):
                self.progress(f"{name}: prefill", position, len(tokens))
            seconds[name] = time.perf_counter() - began
        return seconds

    def _decode(self, decoder: Decoder, base: KvOptions, tokens: list[int], n_threads: int) -> dict[str, dict[str, Any]]:
        """Figures of each mode over the same tokens, from the decoder's position on; leaves the decoder where it was."""
        depth, n_warmup, n_passes = decoder.position, self.bench.n_warmup, self.bench.n_rounds * len(self.modes)
        targets = tokens[n_warmup + 1 :]
        measured = {name: Measured() for name in (*self.modes, *self.apart)}
        bytes_kept: dict[str, dict[str, int]] = {}
        references: dict[str, list[np.ndarray]] = {}
        decoder.set_threads(n_threads)
        for turn in range(self.bench.n_rounds):
            for i, name in enumerate(_rotated(tuple(self.modes), turn)):
                warm_up(decoder, self.modes[name], base, tokens[:n_warmup])
                done = decode(decoder, tokens[n_warmup:-1], keep_logits=turn == 0)
                measured[name].time(done.seconds, done.stats, done.selection)
                bytes_kept[name] = memory_figures(decoder.llama.kv)
                decoder.rewind(depth)
                if turn == 0 and name in _REFERENCES:
                    references[_REFERENCES[name]] = done.logits
                elif turn == 0:  # the references came before
                    measured[name].compare(references, done.logits, targets)
                self.progress(f"decode at {depth}", turn * len(self.modes) + i + 1, n_passes)
        for name, reference in _REFERENCES.items():
            if reference in references:
                others = {other: logits for other, logits in references.items() if other != reference}
                measured[name].compare(others, references[reference], targets)
        for name, known in self.apart.items():
            measured[name].compare(references, known[depth], targets)
        return {name: {**self._figures(name, depth, n_threads, measured), **bytes_kept.get(name, {})} for name in measured}

    def _figures(self, name: str, depth: int, n_threads: int, measured: Mapping[str, Measured]) -> dict[str, Any]:
        one = measured[name]
        figures = {**one.figures(), **one.speed(measured[STOCK]), **self.bench.all_modes[name].figures}
        for other, reference in _REFERENCES.items():
            if other in measured and other != name:
                figures |= one.against(reference, measured[other])
        if "decode_ms_p50" in figures:
            shallow = self.shallow.setdefault((n_threads, name), figures["decode_ms_p50"])
            figures["growth_fraction"] = figures["decode_ms_p50"] / shallow - 1
        return figures

    def _logits_of(self, mode: BenchMode, depths: list[int]) -> dict[int, list[np.ndarray]]:
        """What a mode with a context of its own predicts at each compared position. Nobody takes turns with it, so no times."""
        if not mode.flash_attn and self.caches.type_v != CacheType.F16:
            raise ContextError(f"llama.cpp needs flash attention for a {self.caches.type_v.value} V cache")
        logits: dict[int, list[np.ndarray]] = {}
        n_ctx, n_threads = depths[-1] + self.bench.n_tokens, n_cores()
        with opened(self.bench.model, self.caches, n_ctx, n_threads, mode.flash_attn) as decoder:
            tokens = self.text.tokens(decoder.llama, n_ctx)
            for depth in depths:
                end = depth + self.bench.n_tokens
                if end > len(tokens):
                    break
                for position in read(decoder, tokens[decoder.position : depth], n_threads):
                    self.progress("prefill of a context of its own", position, depth)
                for token in tokens[depth : depth + self.bench.n_warmup]:
                    decoder.decode([token])
                logits[depth] = decode(decoder, tokens[depth + self.bench.n_warmup : end - 1], keep_logits=True).logits
                decoder.rewind(depth)
        return logits

    def _rows(
        self, n_threads: int, depth: int, results: Mapping[str, dict[str, Any]] | None = None, note: str | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> list[Row]:
        """One row for each mode; `notes` of a mode go before the common `note`."""
        info = _native.info()
        common = {
            "depth": depth, "threads": n_threads, "type_k": self.caches.type_k.value, "type_v": self.caches.type_v.value,
            "text": self.text.name, "n_steps": self.bench.n_steps, "n_rounds": self.bench.n_rounds, "model": self.model.path.name,
            "isa": info["isa"], "version": info["version"],
        }
        results, notes = results or {}, notes or {}
        return [
            {"mode": mode, **dict.fromkeys(FIGURES), **results.get(mode, {}), **common, "note": notes.get(mode, note)}
            for mode in self.bench.all_modes
        ]


_REFERENCES = {STOCK: "stock", FULL: "exact"}
"""The modes that predictions are compared with, and what they are called in the figures."""


def _rotated(modes: tuple[str, ...], turn: int) -> tuple[str, ...]:
    shift = turn % len(modes)
    return modes[shift:] + modes[:shift]
