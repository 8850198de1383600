"""Decode speed and fidelity of KV modes, in one run on the same tokens.

For each context the text is read in once, up to each depth in turn. From there on every mode decodes the same tokens of the text
(teacher-forced) in passes of its own (edgekv.lab.engine.passes); the passes take turns, so that all modes see the same machine, warm
or busy. Two kinds of passes besides say what the times are worth. Stock llama.cpp takes turns with flash attention and, in a second
context on the same weights, without: ratios are to the faster one there. And steps with an empty cache give the limit: what a step
costs where attention is free. Predictions are compared on the first round: with stock's, and with those of full attention in our
kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekv import _native
from edgekv.config import KvOptions
from edgekv.errors import ConfigError
from edgekv.lab.engine.modes import FULL, STOCK, STOCK_KERNELS, check_counts, find_mode, rotated, with_stock
from edgekv.lab.engine.passes import (
    BATCH_TOKENS,
    WARMUP_TOKENS,
    Caches,
    decode,
    hooked_note,
    memory_figures,
    opened,
    own,
    read,
    warm_up,
    weights_alone,
)
from edgekv.lab.engine.tally import Tally
from edgekv.lab.questions.kv_request import SpeedRequest
from edgekv.lab.texts.text import Text
from edgekv.machine import n_cores, stamp
from edgekv.memory.fit import CONTEXT_STEP
from edgekv.models import Geometry, geometry
from edgekv.rates.measuring.contexts import ContextError, beside
from edgekv.rates.measuring.decoder import Decoder

FIGURES = (
    "decode_ms_p50", "decode_ms_p10", "decode_ms_p90", "stock", "ratio_vs_stock", "ratio_paired", "limit_ms_p50", "ratio_vs_limit",
    "growth_fraction", "nll",
    "nll_vs_stock", "nll_vs_exact", "kld_stock", "kld_exact", "same_top_stock", "same_top_exact", "attended_fraction", "rows_per_head",
    "coverage", "error", "hit_rate", "hit_rate_mass", "moved_bytes_per_step", "overhead_fraction", "sketch_bytes", "arena_bytes",
)
"""What is measured. `stock` is the faster of stock's kernels there, and the one that ratios are to: ratio_vs_stock divides the medians,
ratio_paired is the median of the ratios at each position. limit_ms_p50 is a step with an empty cache, on as many threads, and
ratio_vs_limit how many times that a step takes. kld_stock and the like compare with stock's first kernel that is measured, whose cache
is that of the other modes. growth_fraction says how much longer a step takes than at the smallest depth. attended_fraction (of the
visible tokens), rows_per_head, hit_rate and the like are over all timed steps, as the runtime counts them; coverage and error are its estimates
of the share of the attention on what is read and of the relative error of a head's output; overhead_fraction is the Python layer's part of a step."""

Row = dict[str, Any]
Progress = Callable[[str, int, int], None]
"""Called with what is being done, the steps done so far and their number."""


@dataclass(frozen=True)
class KvBench(SpeedRequest):
    """What to measure. Every combination of text, cache types, threads and depth gives one row for each mode, the first of them for the
    best of stock. Both of STOCK_KERNELS are measured, unless `modes` name one of them alone."""

    n_steps: int = 64  # timed decode steps of a pass
    n_warmup: int = WARMUP_TOKENS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts({"number of steps": (self.n_steps,), "number of steps before": (self.n_warmup,)})

    @property
    def n_tokens(self) -> int:
        """Tokens of text after the depth: those before the pass, its first step, the timed ones, and the last one's successor,
        which only the likelihood needs."""
        return self.n_warmup + 1 + self.n_steps + 1


def run(
    bench: KvBench, progress: Progress = lambda what, done, total: None, warn: Callable[[str], None] = lambda text: None
) -> Iterator[list[Row]]:
    """Yield the rows of one (text, types, threads, depth) at a time: mode STOCK, which has the figures of the faster of stock's kernels,
    and one for each mode that was measured.

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
    """One text and one pair of cache types: a context for the modes that alternate, one beside it for each that does not, and a small
    one for the limit."""

    def __init__(self, bench: KvBench, model: Geometry, text: Text, caches: Caches, progress: Progress):
        self.bench, self.model, self.text, self.caches, self.progress = bench, model, text, caches, progress
        self.modes = with_stock(bench.modes)
        self.references = {next(iter(self.modes)): "stock", **({FULL: "exact"} if FULL in self.modes else {})}
        self.decoders: dict[str, Decoder] = {}  # of each mode that can be measured
        self.notes: dict[str, str] = {}  # on each that cannot
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
        n_ctx = depths[-1] + self.bench.n_tokens
        with ExitStack() as stack:
            decoder = stack.enter_context(opened(self.bench.model, self.caches, n_ctx, max(self.bench.threads)))
            limit = None
            try:
                limit = stack.enter_context(beside(decoder, CONTEXT_STEP))
            except ContextError as error:
                self.notes[_LIMIT] = str(error)
            for name, mode in self.modes.items():
                try:
                    self.decoders[name] = (decoder if mode.alternates else
                                           stack.enter_context(own(mode, decoder, self.model, self.caches, n_ctx)))
                except ContextError as error:
                    self.notes[name] = str(error)
            if not self.decoders.keys() & set(STOCK_KERNELS):
                raise ContextError(next(self.notes[kernel] for kernel in STOCK_KERNELS if kernel in self.notes))
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
                    self._read(base, tokens[:depth])
                    results = self._decode(limit, base, tokens[depth : depth + self.bench.n_tokens], n_threads, depth)
                    yield self._rows(n_threads, depth, results, hooked_note(decoder.llama.kv))

    def _read(self, base: KvOptions, tokens: list[int]) -> None:
        """Read into every context, with stock on all cores, what of `tokens` is not there yet."""
        for decoder in dict.fromkeys(self.decoders.values()):
            if decoder.kv is not None:
                decoder.kv.configure(find_mode(STOCK).options(base, len(tokens)))
            decoder.rewind(min(decoder.position, len(tokens)))
            for position in read(decoder, tokens[decoder.position :], n_cores()):
                self.progress("prefill", position, len(tokens))

    def _decode(
        self, limit: Decoder | None, base: KvOptions, tokens: list[int], n_threads: int, depth: int
    ) -> dict[str, dict[str, Any]]:
        """Figures of each mode over the same tokens, from `depth` on; leaves the decoders there."""
        targets = tokens[self.bench.n_warmup + 1 :]
        measured = {name: Tally() for name in self.decoders}
        bytes_kept: dict[str, dict[str, int]] = {}
        references: dict[str, list[np.ndarray]] = {}
        limit_ms: list[float] = []
        for decoder in (*self.decoders.values(), *([limit] if limit else [])):
            decoder.set_threads(n_threads)
        turns = (*self.references, *(name for name in self.decoders if name not in self.references), *([_LIMIT] if limit else []))
        for turn in range(self.bench.n_rounds):
            for i, name in enumerate(rotated(turns, turn)):
                self.progress(f"decode at {depth}", turn * len(turns) + i, self.bench.n_rounds * len(turns))
                if limit is not None and name == _LIMIT:
                    limit_ms += [1000 * seconds for seconds in weights_alone(limit, tokens[self.bench.n_warmup : -1])]
                    continue
                decoder = self.decoders[name]
                warm_up(decoder, self.modes[name], base, tokens[: self.bench.n_warmup])
                done = decode(decoder, tokens[self.bench.n_warmup : -1], keep_logits=turn == 0)
                measured[name].time(done.seconds, done.stats, done.selection)
                bytes_kept[name] = memory_figures(decoder.kv)
                decoder.rewind(depth)
                if turn == 0 and name in self.references:
                    references[self.references[name]] = done.logits
                elif turn == 0:  # the references came before
                    measured[name].compare(references, done.logits, targets)
        for name, reference in self.references.items():
            others = {other: logits for other, logits in references.items() if other != reference}
            measured[name].compare(others, references[reference], targets)
        results = {name: {**self._figures(name, measured), **bytes_kept[name]} for name in measured}
        return self._with_limits(results, float(np.median(limit_ms)) if limit else None, n_threads)

    def _figures(self, name: str, measured: Mapping[str, Tally]) -> dict[str, Any]:
        one, stocks = measured[name], [kernel for kernel in STOCK_KERNELS if kernel in measured]
        stock = min(stocks, key=lambda kernel: np.median(measured[kernel].milliseconds))
        figures = {**one.figures(), "stock": stock, **one.speed(measured[stock]), **self.modes[name].figures}
        for other, reference in self.references.items():
            if other != name:
                figures |= one.against(reference, measured[other])
        return figures

    def _with_limits(self, results: dict[str, dict[str, Any]], limit_ms: float | None, n_threads: int) -> dict[str, dict[str, Any]]:
        """With STOCK's figures, which are those of its faster kernel, and how far each is above the limit and the smallest depth."""
        faster = next(figures["stock"] for figures in results.values())
        results = {STOCK: dict(results[faster]), **results}
        for name, figures in results.items():
            shallow = self.shallow.setdefault((n_threads, name), figures["decode_ms_p50"])
            figures["growth_fraction"] = figures["decode_ms_p50"] / shallow - 1
            if limit_ms is not None:
                figures |= {"limit_ms_p50": limit_ms, "ratio_vs_limit": figures["decode_ms_p50"] / limit_ms}
        return results

    def _rows(
        self, n_threads: int, depth: int, results: Mapping[str, dict[str, Any]] | None = None, note: str | None = None
    ) -> list[Row]:
        """One row for STOCK and for each mode; what is to be said of one mode goes before the common `note`."""
        info = _native.info()
        common = {
            "depth": depth, "threads": n_threads, "type_k": self.caches.type_k.value, "type_v": self.caches.type_v.value,
            "text": self.text.name, "n_steps": self.bench.n_steps, "n_rounds": self.bench.n_rounds, "model": self.model.path.name,
            "isa": info["isa"], "version": info["version"], **stamp(),
        }
        notes = dict(self.notes) if results else {}
        if missing := [f"{name} is missing: {notes[name]}" for name in (*STOCK_KERNELS, _LIMIT) if name in notes]:
            notes[STOCK] = "; ".join(missing)
        results = results or {}
        return [
            {"kind": "kv", "mode": mode, **dict.fromkeys(FIGURES), **results.get(mode, {}), **common, "note": notes.get(mode, note)}
            for mode in (STOCK, *self.modes)
        ]


_LIMIT = "limit"
"""Takes turns with the modes: steps with an empty cache."""
