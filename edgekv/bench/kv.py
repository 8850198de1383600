"""Decode speed and exactness of KV modes against stock llama.cpp, alternating in one run on the same tokens.

For each context the text is read in once, up to each depth in turn. From there on every mode decodes the same tokens of the text
(teacher-forced), block by block: a mode decodes a block, the block is forgotten, the next mode decodes it; the order rotates.
So all modes see the same machine, warm or busy. The first token of a block is decoded but not timed, because a change of mode
rebuilds the graph. Prefill is compared the same way, one batch at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekv import _native
from edgekv.bench.decoder import Decoder
from edgekv.bench.measured import Measured, log_softmax
from edgekv.bench.modes import MODES, STOCK
from edgekv.bench.text import Text
from edgekv.errors import ConfigError, EdgeKVError, ModelError
from edgekv.fit import COMPUTE_BYTES, available_bytes
from edgekv.llama import Llama
from edgekv.models import Geometry, geometry
from edgekv.runtime import Runtime
from edgekv.vocab import CacheType

BLOCK_TOKENS = 8
"""Timed decode steps of one mode before the next one's turn."""

BATCH_TOKENS = 512

FIGURES = (
    "decode_ms_p50", "decode_ms_p10", "decode_ms_p90", "ratio_vs_stock", "ratio_paired", "prefill_tps", "nll", "kld_mean",
    "same_top", "hit_rate", "coverage", "attended_fraction", "arena_bytes", "overhead_fraction",
)
"""What is measured. ratio_vs_stock divides the medians; ratio_paired is the median of the ratios at each position."""

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
    modes: tuple[str, ...] = (STOCK, "off-noflash", "exact")
    n_steps: int = 64  # timed decode steps for each mode
    prefill: bool = True  # compare prefill too; it then runs once for each mode

    def __post_init__(self) -> None:
        for mode in self.modes:
            MODES.get(mode)
        for name, values in (("depth", self.depths), ("thread count", self.threads), ("number of steps", (self.n_steps,))):
            if not values or min(values) < 1:
                raise ConfigError(f"a {name} must be 1 or more")

    @property
    def all_modes(self) -> tuple[str, ...]:
        """Stock first."""
        return tuple(dict.fromkeys((STOCK, *self.modes)))

    @property
    def n_tokens(self) -> int:
        """Tokens of text after the depth: the decoded ones and the last one's successor, which only the likelihood needs."""
        return self.n_steps + -(-self.n_steps // BLOCK_TOKENS) + 1


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
            yield from _Run(bench, model, text, type_k, type_v, progress).rows()


class _Run:
    """One text and one pair of cache types: a context for the modes that alternate, and one for each mode that does not."""

    def __init__(self, bench: KvBench, model: Geometry, text: Text, type_k: CacheType, type_v: CacheType, progress: Progress):
        self.bench, self.model, self.text, self.type_k, self.type_v, self.progress = bench, model, text, type_k, type_v, progress
        self.modes = tuple(mode for mode in bench.all_modes if MODES.get(mode).alternates)
        self.apart: dict[str, dict[int, list[np.ndarray]]] = {}  # mode that does not alternate -> depth -> logits of each step

    def rows(self) -> Iterator[list[Row]]:
        fitting = []
        for depth in sorted(set(self.bench.depths)):
            note = self._does_not_fit(depth)
            if note is None:
                fitting.append(depth)
            else:
                yield from (self._rows(n_threads, depth, note=note) for n_threads in self.bench.threads)
        if not fitting:
            return
        try:
            yield from self._measure(fitting)
        except _ContextError as error:  # an answer, not a failure of the benchmark
            for n_threads in self.bench.threads:
                yield from (self._rows(n_threads, depth, note=str(error)) for depth in fitting)

    def _measure(self, depths: list[int]) -> Iterator[list[Row]]:
        notes = {}
        for mode in self.bench.all_modes:
            if mode not in self.modes:
                try:
                    self.apart[mode] = self._logits_of(mode, depths)
                except _ContextError as error:
                    notes[mode] = str(error)
        with self._decoder(depths[-1], flash_attn=True) as decoder:
            tokens = self._tokens(decoder, depths[-1])
            if tokens:
                decoder.decode(tokens[: min(BATCH_TOKENS, depths[0])])  # brings the weights into memory; not measured
            for n_threads in self.bench.threads:
                decoder.rewind(0)
                prefill_s = dict.fromkeys(self.modes, 0.0)
                for depth in depths:
                    if depth + self.bench.n_tokens > len(tokens):
                        yield self._rows(n_threads, depth, note=f"the text has only {len(tokens)} tokens; give a longer one")
                        continue
                    self._prefill(decoder, tokens[decoder.position : depth], n_threads, prefill_s)
                    results = self._decode(decoder, tokens[depth : depth + self.bench.n_tokens])
                    if self.bench.prefill:
                        for mode in self.modes:
                            results[mode]["prefill_tps"] = depth / prefill_s[mode]
                    yield self._rows(n_threads, depth, results, note=_hooked_note(decoder.llama.kv), notes=notes)

    def _prefill(self, decoder: Decoder, tokens: list[int], n_threads: int, seconds: dict[str, float]) -> None:
        """Read `tokens`, adding to each mode's `seconds`. Without comparison stock alone reads them, on all cores."""
        compared = self.modes if self.bench.prefill else (STOCK,)
        decoder.set_threads(n_threads if self.bench.prefill else os.cpu_count() or n_threads)
        start, end = decoder.position, decoder.position + len(tokens)
        for turn, first in enumerate(range(0, len(tokens), BATCH_TOKENS)):
            batch = tokens[first : first + BATCH_TOKENS]
            for mode in _rotated(compared, turn):
                decoder.rewind(start + first)
                MODES.get(mode).select(decoder.llama.kv)
                seconds[mode] += decoder.decode(batch)
            self.progress("prefill", decoder.position, end)
        decoder.set_threads(n_threads)

    def _decode(self, decoder: Decoder, tokens: list[int]) -> dict[str, dict[str, Any]]:
        """Figures of each mode over the same tokens, from the decoder's position on; leaves the decoder where it was."""
        depth, n_decoded = decoder.position, len(tokens) - 1
        measured = {mode: Measured() for mode in (*self.modes, *self.apart)}
        for turn, first in enumerate(range(0, n_decoded, BLOCK_TOKENS + 1)):
            end = min(first + BLOCK_TOKENS + 1, n_decoded)
            logits: dict[str, list[np.ndarray]] = {mode: known[depth][first:end] for mode, known in self.apart.items()}
            for mode in _rotated(self.modes, turn):
                decoder.rewind(depth + first)
                MODES.get(mode).select(decoder.llama.kv)
                logits[mode] = []
                for i in range(first, end):
                    seconds = decoder.decode(tokens[i : i + 1])
                    logits[mode].append(decoder.logits())
                    if i > first:
                        measured[mode].milliseconds.append(1000 * seconds)
            stock = [log_softmax(row) for row in logits[STOCK]]
            for mode, rows in logits.items():
                measured[mode].compare(stock, rows, tokens[first + 1 : end + 1])
            self.progress("decode", end, n_decoded)
        decoder.rewind(depth)
        results = {mode: {**one.figures(measured[STOCK]), **MODES.get(mode).figures} for mode, one in measured.items()}
        if {"exact", "exact-unobserved"} <= set(self.modes):
            ratios = np.array(measured["exact"].milliseconds) / measured["exact-unobserved"].milliseconds
            results["exact"]["overhead_fraction"] = float(np.median(ratios)) - 1
        return results

    def _logits_of(self, mode: str, depths: list[int]) -> dict[int, list[np.ndarray]]:
        """What a mode with a context of its own predicts at each decoded position. Its times are not taken: it has no partner."""
        if not MODES.get(mode).flash_attn and self.type_v != CacheType.F16:
            raise _ContextError(f"llama.cpp needs flash attention for a {self.type_v.value} V cache")
        logits: dict[int, list[np.ndarray]] = {}
        with self._decoder(depths[-1], MODES.get(mode).flash_attn) as decoder:
            decoder.set_threads(os.cpu_count() or 1)
            MODES.get(mode).select(decoder.llama.kv)
            tokens = self._tokens(decoder, depths[-1])
            for depth in depths:
                if depth + self.bench.n_tokens > len(tokens):
                    break
                for first in range(decoder.position, depth, BATCH_TOKENS):
                    decoder.decode(tokens[first : min(first + BATCH_TOKENS, depth)])
                    self.progress(f"{mode}: prefill", decoder.position, depth)
                logits[depth] = []
                for token in tokens[depth : depth + self.bench.n_tokens - 1]:
                    decoder.decode([token])
                    logits[depth].append(decoder.logits())
                decoder.rewind(depth)
        return logits

    @contextmanager
    def _decoder(self, depth: int, flash_attn: bool) -> Iterator[Decoder]:
        try:
            llama = Llama(str(self.bench.model), kv="exact", type_k=self.type_k, type_v=self.type_v, flash_attn=flash_attn,
                          n_ctx=depth + self.bench.n_tokens, n_batch=BATCH_TOKENS, n_ubatch=BATCH_TOKENS,
                          n_threads=max(self.bench.threads), verbose=False)
        except ModelError:
            raise
        except EdgeKVError as error:
            raise _ContextError(f"does not fit: {error}") from error
        decoder = Decoder(llama)
        try:
            yield decoder
        finally:
            decoder.close()
            llama.close()

    def _tokens(self, decoder: Decoder, depth: int) -> list[int]:
        # The tokenizer is only asked for as much text as could be needed: 16 bytes a token is far above any language's mean.
        return decoder.llama.tokenize(self.text.content[: 16 * (depth + self.bench.n_tokens)].encode())

    def _does_not_fit(self, depth: int) -> str | None:
        needed = self.model.kv_bytes(depth + self.bench.n_tokens, self.type_k.value, self.type_v.value) + COMPUTE_BYTES
        free = available_bytes()
        if needed <= free:
            return None
        return f"does not fit: it needs {needed / (1 << 30):.1f} GiB and {free / (1 << 30):.1f} GiB are free"

    def _rows(
        self, n_threads: int, depth: int, results: dict[str, dict[str, Any]] | None = None, note: str | None = None,
        notes: dict[str, str] | None = None,
    ) -> list[Row]:
        """One row for each mode; `notes` of a mode go before the common `note`."""
        info = _native.info()
        common = {
            "depth": depth, "threads": n_threads, "type_k": self.type_k.value, "type_v": self.type_v.value,
            "text": self.text.name, "n_steps": self.bench.n_steps, "model": self.model.path.name,
            "isa": info["isa"], "version": info["version"],
        }
        results, notes = results or {}, notes or {}
        return [
            {"mode": mode, **dict.fromkeys(FIGURES), **results.get(mode, {}), **common, "note": notes.get(mode, note)}
            for mode in self.bench.all_modes
        ]


class _ContextError(Exception):
    """A context that cannot be had; the message goes into the rows."""


def _hooked_note(runtime: Runtime) -> str | None:
    layers = runtime.layers
    stock = [layer for layer in layers if not layer.hooked]
    return f"{len(stock)} of {len(layers)} layers run stock in every mode: {stock[0].reason}" if stock else None


def _rotated(modes: tuple[str, ...], turn: int) -> tuple[str, ...]:
    shift = turn % len(modes)
    return modes[shift:] + modes[:shift]
