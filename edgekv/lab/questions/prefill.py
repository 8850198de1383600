"""How fast prompts are read, by mode and depth, in one run on the same tokens.

A chunk is as many tokens as are computed at once. The context is filled up to each depth once, with full attention in our kernel; there
the modes take turns reading the same chunk, which is taken back after each. What a chunk costs but for the cache before it comes from the
same turns: each mode reads it into an empty cache too, in a small context of its own. Stock without flash attention has contexts of its
own, and fills its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekv import _native
from edgekv.config import KvOptions
from edgekv.errors import ConfigError
from edgekv.lab.engine.modes import FULL, STOCK, STOCK_KERNELS, BenchMode, check_counts, find_mode, rotated, with_stock
from edgekv.lab.engine.passes import BATCH_TOKENS, Caches, hooked_note, opened, own, read
from edgekv.lab.questions.kv import Progress, Row
from edgekv.lab.questions.kv_request import SpeedRequest
from edgekv.lab.texts.text import Text
from edgekv.live import runtime
from edgekv.machine import n_cores, stamp
from edgekv.memory.fit import CONTEXT_STEP
from edgekv.models import Geometry, geometry
from edgekv.rates.measuring.contexts import ContextError, beside
from edgekv.rates.measuring.decoder import Decoder

FIGURES = ("tokens_per_second", "ms_p50", "ms_min", "ms_max", "stock", "ratio_vs_stock", "attention_fraction", "pair_ns")
"""What is measured. `ms_p50` is the median time of the `n_tokens` that a row is about, and tokens_per_second is theirs; `stock` is the
faster of stock's kernels there, and ratio_vs_stock divides the medians. attention_fraction is the share of that time which attention to
the `depth` tokens before the chunk takes: what the median exceeds that of the same chunk in an empty cache by, where only the chunk's own
tokens are attended. pair_ns is that excess for each (query, key, query head) of the layers that EdgeKV serves, times the threads; both
are None where there is no depth."""

FILLS = FULL
"""The mode that reads what chunks are measured behind: the fastest without an error."""


@dataclass(frozen=True)
class PrefillBench(SpeedRequest):
    """What to measure. Every combination of text, cache types and threads gives, for an empty cache, each depth and `n_whole`, one row for
    each mode, the first of them for the best of stock."""

    n_chunk: int = BATCH_TOKENS  # tokens of a chunk, computed at once
    n_whole: int | None = None  # tokens of a prompt that is read whole, chunk after chunk from an empty cache

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts({"whole prompt": (self.n_whole or 1,)})
        if self.n_chunk < 2:
            raise ConfigError("a chunk of a prompt must have 2 tokens or more")


def run(
    bench: PrefillBench, progress: Progress = lambda what, done, total: None, warn: Callable[[str], None] = lambda text: None
) -> Iterator[list[Row]]:
    """Yield the rows of one (text, types, threads) at a time: of the empty cache, of each depth, of the whole prompt.

    Where something cannot be measured its rows say why under `note`, and the other figures are None.
    """
    if not _native.info()["enabled"]:
        raise ConfigError("EDGEKV=0 is set, so there is only stock attention to measure; unset it")
    model = geometry(bench.model)
    if max(*bench.depths, bench.n_whole or 0) + bench.n_chunk > model.n_ctx_train:
        warn(f"{model.path.name} was trained for {model.n_ctx_train} tokens; times mean the same beyond them")
    for text in bench.texts:
        for type_k, type_v in bench.cache_types:
            yield from _Run(bench, model, text, Caches(type_k, type_v, bench.page_tokens), progress).rows()


@dataclass(frozen=True)
class _Place:
    """What is read: `n_tokens` behind `depth` others; a chunk, or a whole prompt."""

    depth: int
    n_tokens: int
    whole: bool = False

    @property
    def end(self) -> int:
        return self.depth + self.n_tokens


Results = dict[str, dict[str, Any]]
"""Figures by mode."""


class _Run:
    """One text and one pair of cache types: a context for the modes that alternate, one beside it for each that does not, and beside each
    of these a small one, in which chunks are read into an empty cache."""

    def __init__(self, bench: PrefillBench, model: Geometry, text: Text, caches: Caches, progress: Progress):
        self.bench, self.model, self.text, self.caches, self.progress = bench, model, text, caches, progress
        self.modes = with_stock(bench.modes)
        self.decoders: dict[str, Decoder] = {}  # of each mode that can be measured
        self.empty: dict[str, Decoder] = {}  # the small ones, of the same modes
        self.notes: dict[str, str] = {}  # on each that cannot
        self.n_heads = 0  # query heads of all layers that are served

    def rows(self) -> Iterator[list[Row]]:
        chunks = [_Place(depth, self.bench.n_chunk) for depth in (0, *sorted(set(self.bench.depths)))]
        places = [*chunks, *([_Place(0, self.bench.n_whole, whole=True)] if self.bench.n_whole else [])]
        notes = {place: self.caches.does_not_fit(self.model, place.end) for place in places}
        results: dict[tuple[int, _Place], Results] = {}
        try:
            results = self._measure([place for place in places if notes[place] is None], notes)
        except ContextError as error:  # an answer, not a failure of the benchmark
            notes = {place: note or str(error) for place, note in notes.items()}
        for n_threads in self.bench.threads:
            yield [row for place in places for row in self._rows(n_threads, place, results.get((n_threads, place)), notes[place])]

    def _measure(self, places: list[_Place], notes: dict[_Place, str | None]) -> dict[tuple[int, _Place], Results]:
        """By threads and place, of those that the text is long enough for; `notes` says which are missing, and what is to be said of the
        others."""
        if not places:
            return {}
        n_ctx = max(place.end for place in places)
        n_small = -(-self.bench.n_chunk // CONTEXT_STEP) * CONTEXT_STEP
        with ExitStack() as stack:
            decoder = stack.enter_context(opened(self.bench.model, self.caches, n_ctx, max(self.bench.threads), n_batch=self.bench.n_chunk))
            base = decoder.llama.kv.options
            with runtime.defaults(base):
                empty = stack.enter_context(beside(decoder, n_small))
            for name, mode in self.modes.items():
                try:
                    contexts = (decoder, empty) if mode.alternates else tuple(
                        stack.enter_context(own(mode, decoder, self.model, self.caches, n)) for n in (n_ctx, n_small))
                    self.decoders[name], self.empty[name] = contexts
                except ContextError as error:
                    self.notes[name] = str(error)
            if not self.decoders.keys() & set(STOCK_KERNELS):
                raise ContextError(next(self.notes[kernel] for kernel in STOCK_KERNELS if kernel in self.notes))
            self.n_heads = sum(layer.n_head for layer in decoder.llama.kv.layers if layer.hooked)
            tokens = self.text.tokens(decoder.llama, n_ctx)
            for place in places:
                notes[place] = (hooked_note(decoder.llama.kv) if place.end <= len(tokens)
                                else f"the text has only {len(tokens)} tokens; give a longer one")
            return self._read_all(base, tokens, [place for place in places if place.end <= len(tokens)])

    def _read_all(self, base: KvOptions, tokens: list[int], places: list[_Place]) -> dict[tuple[int, _Place], Results]:
        results: dict[tuple[int, _Place], Results] = {}
        empty: dict[int, dict[str, list[float]]] = {n: {name: [] for name in self.decoders} for n in self.bench.threads}
        for decoder in {*self.decoders.values(), *self.empty.values()}:  # brings weights and work space into memory; not measured
            decoder.decode(tokens[: self.bench.n_chunk])
            decoder.rewind(0)
        for place in places:
            if place.depth:
                self._fill(base, tokens[: place.depth])
            for n_threads in self.bench.threads:
                if place.whole:
                    results[n_threads, place] = self._figures(place, n_threads, self._whole(base, tokens[: place.n_tokens], n_threads))
                elif place.depth:
                    there, none = self._chunks(base, tokens[place.depth : place.end], n_threads, place.depth)
                    results[n_threads, place] = self._figures(place, n_threads, there, none)
                    for name, seconds in none.items():
                        empty[n_threads][name] += seconds
        chunk = _Place(0, self.bench.n_chunk)
        for n_threads, taken in empty.items() if chunk in places else ():
            if not any(taken.values()):  # there is no depth that they took turns with
                taken = self._chunks(base, tokens[: chunk.end], n_threads, 0)[1]  # noqa: PLW2901 (in its place)
            results[n_threads, chunk] = self._figures(chunk, n_threads, taken)
        return results

    def _fill(self, base: KvOptions, tokens: list[int]) -> None:
        """Read into every context, on all cores, what of `tokens` is not there yet."""
        for decoder in dict.fromkeys(self.decoders.values()):
            if decoder.kv is not None:
                decoder.kv.configure(find_mode(FILLS).options(base, len(tokens)))
            for position in read(decoder, tokens[decoder.position :], n_cores(), self.bench.n_chunk):
                self.progress("fill", position, len(tokens))

    def _chunks(self, base: KvOptions, chunk: list[int], n_threads: int, depth: int) -> tuple[dict[str, list[float]], ...]:
        """Seconds of each mode by turn for `chunk` at `depth`, and in an empty cache; leaves the decoders there."""
        there: dict[str, list[float]] = {name: [] for name in self.decoders}
        empty: dict[str, list[float]] = {name: [] for name in self.decoders}
        for name in self._turns(f"read at {depth}"):
            for decoder, seconds in ((self.empty[name], empty), (self.decoders[name], there)):
                seconds[name].append(_timed(decoder, self.modes[name], base, chunk, n_threads))
        return there, empty

    def _whole(self, base: KvOptions, tokens: list[int], n_threads: int) -> dict[str, list[float]]:
        """Seconds of each mode by turn for all of `tokens`, from an empty cache."""
        seconds: dict[str, list[float]] = {name: [] for name in self.decoders}
        for name in self._turns(f"read {len(tokens)} tokens"):
            decoder = self.decoders[name]
            decoder.rewind(0)
            if decoder.kv is not None:
                decoder.kv.configure(self.modes[name].options(base, len(tokens)))
            began = time.perf_counter()
            for _ in read(decoder, tokens, n_threads, self.bench.n_chunk):
                pass
            seconds[name].append(time.perf_counter() - began)
        return seconds

    def _turns(self, what: str) -> Iterator[str]:
        names = tuple(self.decoders)
        for turn in range(self.bench.n_rounds):
            for i, name in enumerate(rotated(names, turn)):
                self.progress(what, turn * len(names) + i, self.bench.n_rounds * len(names))
                yield name

    def _figures(self, place: _Place, n_threads: int, seconds: Mapping[str, list[float]],
                 empty: Mapping[str, list[float]] | None = None) -> Results:
        """With STOCK's, which are those of its faster kernel. `empty`: the same chunk without a depth."""
        medians = {name: 1000 * float(np.median(values)) for name, values in seconds.items()}
        stock = min((name for name in STOCK_KERNELS if name in medians), key=medians.__getitem__)
        results: Results = {}
        for name, ms in medians.items():
            results[name] = {"tokens_per_second": 1000 * place.n_tokens / ms, "ms_p50": ms, "ms_min": 1000 * min(seconds[name]),
                             "ms_max": 1000 * max(seconds[name]), "stock": stock, "ratio_vs_stock": medians[stock] / ms}
            if empty is not None:
                excess = ms - 1000 * float(np.median(empty[name]))
                n_pairs = place.n_tokens * place.depth * self.n_heads
                results[name] |= {"attention_fraction": excess / ms, "pair_ns": 1e6 * excess * n_threads / n_pairs if n_pairs else None}
        return {STOCK: dict(results[stock]), **results}

    def _rows(self, n_threads: int, place: _Place, results: Results | None, note: str | None) -> list[Row]:
        """One row for STOCK and for each mode; what is to be said of one mode goes before the common `note`."""
        info = _native.info()
        common = {
            "depth": place.depth, "n_tokens": place.n_tokens, "threads": n_threads, "type_k": self.caches.type_k.value,
            "type_v": self.caches.type_v.value, "text": self.text.name, "n_rounds": self.bench.n_rounds, "n_chunk": self.bench.n_chunk,
            "model": self.model.path.name, "isa": info["isa"], "version": info["version"], **stamp(),
        }
        notes = dict(self.notes) if results else {}
        if missing := [f"{name} is missing: {notes[name]}" for name in STOCK_KERNELS if name in notes]:
            notes[STOCK] = "; ".join(missing)
        results = results or {}
        return [{"kind": "prompt" if place.whole else "prefill", "mode": mode, **dict.fromkeys(FIGURES), **results.get(mode, {}), **common,
                 "note": notes.get(mode, note)} for mode in (STOCK, *self.modes)]


def _timed(decoder: Decoder, mode: BenchMode, base: KvOptions, chunk: list[int], n_threads: int) -> float:
    """Seconds for `chunk` where the decoder stands; it stands there again after. What a change of mode costs is not among them."""
    position = decoder.position
    if decoder.kv is not None:
        decoder.kv.configure(mode.options(base, position + len(chunk)))
    decoder.set_threads(n_threads)
    decoder.decode(chunk[:1])
    decoder.rewind(position)
    seconds = decoder.decode(chunk)
    decoder.rewind(position)
    return seconds
