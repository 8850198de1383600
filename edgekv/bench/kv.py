"""Decode speed and exactness of KV modes against stock llama.cpp, alternating in one run on the same tokens.

For each context the text is read in once, up to each depth in turn. From there on every mode decodes the same tokens of the text
(teacher-forced), block by block: a mode decodes a block, the block is forgotten, the next mode decodes it; the order rotates.
So all modes see the same machine, warm or busy. The first token of a block is decoded but not timed, because a change of mode
rebuilds the graph. Prefill is compared the same way, one batch at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgekv import _native
from edgekv.bench.decoder import Decoder
from edgekv.bench.text import Text
from edgekv.errors import ConfigError, DoesNotFit
from edgekv.fit import COMPUTE_BYTES, available_bytes
from edgekv.llama import Llama
from edgekv.models import Geometry, geometry
from edgekv.registry import Registry
from edgekv.runtime import Runtime
from edgekv.vocab import CacheType, KvMode

STOCK = "off"
BLOCK_TOKENS = 8
"""Timed decode steps of one mode before the next one's turn."""

BATCH_TOKENS = 512

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the steps done so far and their number."""


@dataclass(frozen=True)
class BenchMode:
    """A way to run the context. `select` switches to it; figures that a mode has by its nature, e.g. attended_fraction, are in `figures`."""

    select: Callable[[Runtime], None]
    figures: dict[str, float]


def _select(mode: KvMode, observe: bool) -> Callable[[Runtime], None]:
    def select(runtime: Runtime) -> None:
        runtime.mode = mode
        runtime.observe = observe

    return select


MODES: Registry[BenchMode] = Registry("bench mode")
MODES.add(STOCK, BenchMode(_select(KvMode.OFF, False), {}), "stock llama.cpp attention; always measured, the others are compared with it")
MODES.add("exact", BenchMode(_select(KvMode.EXACT, True), {"coverage": 1.0, "attended_fraction": 1.0}), KvMode.EXACT.description)
MODES.add("exact-unobserved", BenchMode(_select(KvMode.EXACT, False), {"coverage": 1.0, "attended_fraction": 1.0}),
          "exact without measuring attention mass: shows what the observation costs")


@dataclass(frozen=True)
class KvBench:
    """What to measure. Every combination of text, cache types, threads and depth gives one row for each mode."""

    model: Path
    texts: tuple[Text, ...]
    depths: tuple[int, ...] = (512, 4096, 7680)
    threads: tuple[int, ...] = (1,)
    cache_types: tuple[tuple[CacheType, CacheType], ...] = ((CacheType.F16, CacheType.F16),)
    modes: tuple[str, ...] = (STOCK, "exact")
    n_steps: int = 64  # timed decode steps for each mode
    prefill: bool = True  # compare prefill too; it then runs once for each mode

    def __post_init__(self) -> None:
        for mode in self.modes:
            MODES.get(mode)
        for name, values in (("depth", self.depths), ("thread count", self.threads), ("number of steps", (self.n_steps,))):
            if not values or min(values) < 1:
                raise ConfigError(f"a {name} must be 1 or more")

    @property
    def n_tokens(self) -> int:
        """Tokens of text after the depth: the decoded ones and the last one's successor, which only the likelihood needs."""
        return self.n_steps + -(-self.n_steps // BLOCK_TOKENS) + 1


def run(bench: KvBench, progress: Progress = lambda what, done, total: None, warn: Callable[[str], None] = lambda text: None
        ) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of one (text, types, threads, depth) at a time, one for each mode, stock first.

    Where something cannot be measured its rows say why under `note`, and the other figures are None.
    """
    model = geometry(bench.model)
    if max(bench.depths) + bench.n_tokens > model.n_ctx_train:
        warn(f"{model.path.name} was trained for {model.n_ctx_train} tokens: what it predicts beyond them is not meaningful, the times are")
    modes = tuple(dict.fromkeys((STOCK, *bench.modes)))
    for text in bench.texts:
        for type_k, type_v in bench.cache_types:
            yield from _run_context(bench, model, modes, text, type_k, type_v, progress)


def _run_context(
    bench: KvBench, model: Geometry, modes: tuple[str, ...], text: Text, type_k: CacheType, type_v: CacheType, progress: Progress
) -> Iterator[list[dict[str, Any]]]:
    info = _native.info()

    def rows(n_threads: int, depth: int, results: dict[str, dict[str, Any]] | None, note: str | None) -> list[dict[str, Any]]:
        common = {
            "depth": depth, "threads": n_threads, "type_k": type_k.value, "type_v": type_v.value, "text": text.name,
            "n_steps": bench.n_steps, "model": model.path.name, "isa": info["isa"], "version": info["version"], "note": note,
        }
        return [{"mode": mode, **dict.fromkeys(FIGURES), **((results or {}).get(mode, {})), **common} for mode in modes]

    fitting: list[int] = []
    for depth in sorted(set(bench.depths)):
        needed = model.kv_bytes(depth + bench.n_tokens, type_k.value, type_v.value) + COMPUTE_BYTES
        free = available_bytes()
        if needed <= free:
            fitting.append(depth)
            continue
        note = f"does not fit: it needs {needed / (1 << 30):.1f} GiB and {free / (1 << 30):.1f} GiB are free"
        for n_threads in bench.threads:
            yield rows(n_threads, depth, None, note)
    if not fitting:
        return
    try:
        llama = Llama(str(bench.model), kv=KvMode.EXACT, type_k=type_k, type_v=type_v, n_ctx=fitting[-1] + bench.n_tokens,
                      n_batch=BATCH_TOKENS, n_ubatch=BATCH_TOKENS, n_threads=max(bench.threads), verbose=False)
    except DoesNotFit as error:
        for n_threads in bench.threads:
            for depth in fitting:
                yield rows(n_threads, depth, None, f"does not fit: {error}")
        return
    decoder = Decoder(llama)
    try:
        # The tokenizer is only asked for as much text as could be needed: 16 bytes a token is far above any language's mean.
        tokens = llama.tokenize(text.content[: 16 * (fitting[-1] + bench.n_tokens)].encode())
        for n_threads in bench.threads:
            decoder.rewind(0)
            prefill_s = dict.fromkeys(modes, 0.0)
            for depth in fitting:
                if depth + bench.n_tokens > len(tokens):
                    yield rows(n_threads, depth, None, f"the text has only {len(tokens)} tokens; give a longer one")
                    continue
                _prefill(bench, decoder, tokens[decoder.position : depth], modes, n_threads, prefill_s, progress)
                results = _decode(bench, decoder, tokens[depth : depth + bench.n_tokens], modes, progress)
                for mode in modes:
                    results[mode]["prefill_tps"] = depth / prefill_s[mode] if bench.prefill else None
                yield rows(n_threads, depth, results, None)
    finally:
        decoder.close()
        llama.close()


FIGURES = (
    "decode_ms_p50", "decode_ms_p10", "decode_ms_p90", "ratio_vs_stock", "ratio_paired", "prefill_tps", "nll", "kld_mean", "same_top",
    "hit_rate", "coverage", "attended_fraction", "arena_bytes", "overhead_fraction",
)
"""What is measured. ratio_vs_stock divides the medians; ratio_paired is the median of the ratios at each position."""


def _prefill(
    bench: KvBench, decoder: Decoder, tokens: list[int], modes: tuple[str, ...], n_threads: int, seconds: dict[str, float], progress: Progress
) -> None:
    """Read `tokens`, adding to each mode's `seconds`. Without comparison stock alone reads them, on all cores."""
    compared = modes if bench.prefill else modes[:1]
    decoder.set_threads(n_threads if bench.prefill else os.cpu_count() or n_threads)
    start, n_total = decoder.position, decoder.position + len(tokens)
    for turn, first in enumerate(range(0, len(tokens), BATCH_TOKENS)):
        batch = tokens[first : first + BATCH_TOKENS]
        for mode in _rotated(compared, turn):
            decoder.rewind(start + first)
            MODES.get(mode).select(decoder.llama.kv)
            seconds[mode] += decoder.decode(batch)
        progress("prefill", decoder.position, n_total)
    decoder.set_threads(n_threads)


def _decode(bench: KvBench, decoder: Decoder, tokens: list[int], modes: tuple[str, ...], progress: Progress) -> dict[str, dict[str, Any]]:
    """Figures of each mode over the same tokens, from the decoder's position on; leaves the decoder where it was."""
    start = decoder.position
    measured = {mode: _Measured() for mode in modes}
    for turn, first in enumerate(range(0, len(tokens) - 1, BLOCK_TOKENS + 1)):
        block = tokens[first : first + BLOCK_TOKENS + 1][: len(tokens) - 1 - first]
        targets = tokens[first + 1 : first + 1 + len(block)]
        logits: dict[str, list[np.ndarray]] = {mode: [] for mode in modes}
        for mode in _rotated(modes, turn):
            decoder.rewind(start + first)
            MODES.get(mode).select(decoder.llama.kv)
            for i, token in enumerate(block):
                seconds = decoder.decode([token])
                logits[mode].append(decoder.logits())
                if i > 0:
                    measured[mode].milliseconds.append(1000 * seconds)
        stock = [_log_softmax(row) for row in logits[STOCK]]
        for mode in modes:
            measured[mode].compare(stock, logits[mode], targets)
        progress("decode", first + len(block), len(tokens) - 1)
    decoder.rewind(start)
    results = {mode: measured[mode].figures(measured[STOCK], MODES.get(mode).figures, mode == STOCK) for mode in modes}
    if {"exact", "exact-unobserved"} <= set(modes):
        ratios = np.array(measured["exact"].milliseconds) / measured["exact-unobserved"].milliseconds
        results["exact"]["overhead_fraction"] = float(np.median(ratios)) - 1
    return results


class _Measured:
    """What one mode did at one depth: a time for each timed step; likelihood, divergence and top token for each step."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []
        self.nll: list[float] = []
        self.kld: list[float] = []
        self.same_top: list[bool] = []

    def compare(self, stock: list[np.ndarray], logits: list[np.ndarray], targets: list[int]) -> None:
        for log_p, row, target in zip(stock, logits, targets):
            log_q = _log_softmax(row)
            self.nll.append(-log_q[target])
            self.kld.append(float(np.sum(np.exp(log_p) * (log_p - log_q))))
            self.same_top.append(bool(np.argmax(log_p) == np.argmax(log_q)))

    def figures(self, stock: _Measured, given: dict[str, float], is_stock: bool) -> dict[str, Any]:
        p10, p50, p90 = (float(value) for value in np.percentile(self.milliseconds, (10, 50, 90)))
        figures = {"decode_ms_p50": p50, "decode_ms_p10": p10, "decode_ms_p90": p90, "nll": float(np.mean(self.nll)), **given}
        if not is_stock:
            figures |= {
                "ratio_vs_stock": float(np.median(stock.milliseconds)) / p50,
                "ratio_paired": float(np.median(np.array(stock.milliseconds) / self.milliseconds)),
                "kld_mean": float(np.mean(self.kld)),
                "same_top": float(np.mean(self.same_top)),
            }
        else:
            figures |= {"ratio_vs_stock": 1.0, "ratio_paired": 1.0}
        return figures


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    """In double precision: the divergence of two nearly equal distributions is a difference of nearly equal numbers."""
    x = logits.astype(np.float64)
    x -= x.max()
    return x - np.log(np.exp(x).sum())


def _rotated(modes: tuple[str, ...], turn: int) -> tuple[str, ...]:
    shift = turn % len(modes)
    return modes[shift:] + modes[:shift]
