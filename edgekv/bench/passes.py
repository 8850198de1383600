"""A pass: one mode decodes some tokens from the present cache, and every mode starts alike.

Modes have memory (recent attention, pages in the arena), so they cannot take turns token by token. Each pass
first makes the mode's policy forget earlier passes. A few steps of full attention follow, not measured, in which every mode's policy sees
the same attention. The mode's own first step is not timed, because a change of mode rebuilds the graph.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from edgekv.bench.modes import BenchMode
from edgekv.bench.process import Counts
from edgekv.bench.request import BenchTest
from edgekv.bench.tally import added
from edgekv.common.enums import KvMode
from edgekv.common.reports import SelectionReport
from edgekv.config import KvOptions
from edgekv.measure.contexts import Contexts
from edgekv.measure.decoder import Decoder
from edgekv.measure.steps import set_mode
from edgekv.runtime.runtime import Runtime
from edgekv.tiering.stats import Stats

LEAST_STEPS = 4
"""At least so many steps are timed, however long they take."""

WARMUP_TOKENS = 16
"""Steps of full attention before a mode's own: the half-life of the moving average is about 6.6 tokens."""

LIMIT_TOKENS = 4
"""Tokens decoded with an empty cache in each turn."""

_WARMUP_SHARE = 8
"""Generated tokens per token of warm-up, in which a policy sees attention."""


def warm_up(decoder: Decoder, mode: BenchMode, base: KvOptions, tokens: Sequence[int]) -> None:
    """Decode `tokens` one by one with full attention, then put the context in `mode`. A context without EdgeKV decodes them with
    stock attention."""
    runtime = decoder.kv
    if runtime is None:
        for token in tokens:
            decoder.decode([token])
        return
    options = mode.options(base, decoder.position + len(tokens))
    runtime.configure(options.with_(policy="none"))  # a changed policy starts again
    runtime.configure(options)
    runtime.configure(options.with_(mode=KvMode.EXACT, observe=True))
    for token in tokens:
        decoder.decode([token])
    runtime.configure(options)


class Pass(Struct):
    """A mode's pass: logits of every step [n_vocab], and seconds and counters of the timed steps (all but the first)."""

    logits: list[np.ndarray] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    selection: SelectionReport = SelectionReport()


def decode(decoder: Decoder, tokens: Sequence[int], keep_logits: bool, step: Callable[[Sequence[int]], float] | None = None,
           patience: float = math.inf, counts: Counts | None = None) -> Pass:
    """Decode `tokens` one by one in the present mode; stop early once the timed steps take more than `patience` seconds. `step`
    decodes a token and returns its seconds; None: the decoder's own. `counts` counts the timed steps."""
    done, step, counts = Pass(), step or decoder.decode, counts or Counts()
    stats, selection = _counters(decoder.kv)
    for i, token in enumerate(tokens):
        if i == 1:
            stats, selection = _counters(decoder.kv)
            counts.begin()
        seconds = step([token])
        if i:
            done.seconds.append(seconds)
        if keep_logits:
            done.logits.append(decoder.logits())
        if i >= LEAST_STEPS and sum(done.seconds) > patience:
            break
    if done.seconds:
        counts.end()
    after = _counters(decoder.kv)
    done.stats, done.selection = added(after[0], stats, -1), added(after[1], selection, -1)
    return done


def _counters(runtime: Runtime | None) -> tuple[Stats, SelectionReport]:
    """Copies of the counters; zeros without EdgeKV."""
    return (Stats(), SelectionReport()) if runtime is None else (replace(runtime.stats), runtime.selection())


def weights_alone(decoder: Decoder, tokens: Sequence[int]) -> list[float]:
    """Seconds of each step but the first, each behind that first token alone: a step's time when attention costs nothing. The
    first token stays, since an empty home gives its memory back and the next step would pay for it again."""
    decoder.rewind(0)
    decoder.decode(tokens[:1])
    decoder.mark()
    seconds = []
    for token in tokens[1:]:
        decoder.rewind(1)
        seconds.append(decoder.decode([token]))
    return seconds


def memory_figures(runtime: Runtime | None) -> dict[str, int]:
    """Bytes of the sketches and of the arena, each only if not 0."""
    if runtime is None:
        return {}
    memory = runtime.memory()
    kept = {"sketch_bytes": memory.sketch_bytes, "arena_bytes": memory.arena_bytes}
    return {name: n for name, n in kept.items() if n}


def hooked_note(runtime: Runtime) -> str | None:
    layers = runtime.layers
    stock = [layer for layer in layers if not layer.attended]
    return f"{len(stock)} of {len(layers)} layers run stock in every mode: {stock[0].reason}" if stock else None


class Passes:
    """Passes that take turns in the contexts of one model."""

    def __init__(self, opened: Contexts, n_warmup: int | None = None):
        """n_warmup: tokens with full attention before generation, in every mode; None: only in mode sparse, in proportion to the
        tokens that it will generate."""
        self.opened, self.n_warmup = opened, n_warmup
        self.counts = Counts()
        """What the newest `one` counted in the time that it measured."""

    def one(self, mode: BenchMode, test: BenchTest, n_threads: int, keep_logits: bool) -> tuple[float, Pass | None]:
        """The seconds of the prompt, and the pass that generated. The cache holds `test.depth` tokens before and after. Changes of mode
        and a policy's first look are not timed."""
        decoder = self.opened.of(mode.flash_attn)
        assert decoder is not None
        decoder.set_threads(n_threads)
        self._enter(decoder, mode, test)
        tokens, self.counts = self.opened.token(test.depth, test.margin), Counts()
        try:
            seconds = self._prompt(decoder, tokens[: test.n_prompt], self.counts)
            if not test.n_gen:
                return seconds, None
            if test.n_prompt:
                return seconds, _generate(decoder, tokens[test.n_prompt : test.n_tokens], keep_logits, self.counts)
            return 0.0, decode(decoder, tokens, keep_logits, counts=self.counts)
        finally:
            decoder.rewind(test.depth)

    def empty(self, mode: BenchMode, test: BenchTest, n_threads: int) -> float | None:
        """Seconds of the test's prompt in an empty cache; None if the test needs none, or no context serves for it."""
        decoder = self.opened.of(mode.flash_attn, empty=True)
        if decoder is None or not test.n_empty:
            return None
        decoder.rewind(0)
        decoder.set_threads(n_threads)
        if decoder.kv is not None:
            decoder.kv.configure(mode.options(self.opened.base, test.n_empty))
        return self._prompt(decoder, self.opened.token(test.depth, test.n_empty), Counts())

    def limit(self, n_threads: int) -> list[float]:
        """Seconds of tokens with an empty cache, in mode exact: only the weights, in the fastest kernels for them."""
        decoder = self.opened.of(flash_attn=True, empty=True)
        if decoder is None:
            return []
        decoder.set_threads(n_threads)
        if decoder.kv is not None:
            set_mode(decoder, KvMode.EXACT, observe=False)
        return weights_alone(decoder, self.opened.token(0, LIMIT_TOKENS + 1))

    def targets(self, test: BenchTest) -> list[int]:
        """The successor of each token that a test without a prompt decodes."""
        return self.opened.token(test.depth + 1, test.margin)

    def _prompt(self, decoder: Decoder, tokens: Sequence[int], counts: Counts) -> float:
        """Seconds of the prompt, which is counted. Decodes its first token once before and rewinds, which builds the mode's graph."""
        if not tokens:
            return 0.0
        depth = decoder.position
        decoder.mark()
        decoder.decode(tokens[:1])
        decoder.rewind(depth)
        counts.begin()
        seconds = decoder.read(tokens, self.opened.opening.n_batch)
        counts.end()
        return seconds

    def _enter(self, decoder: Decoder, mode: BenchMode, test: BenchTest) -> None:
        n = self.n_warmup
        if n is None and decoder.keeps_more:
            n = self.opened.opening.n_back  # so every mode has its cells in the same order
        elif n is None and mode.changes["mode"] is KvMode.SPARSE:
            n = min(WARMUP_TOKENS, test.n_gen // _WARMUP_SHARE)
        if n is not None and test.decodes:
            n = min(n, test.depth)
            decoder.rewind(test.depth - n)
            warm_up(decoder, mode, self.opened.base, self.opened.token(test.depth - n, n))
            decoder.mark()
        elif decoder.kv is not None:
            decoder.kv.configure(mode.options(self.opened.base, test.depth + test.n_tokens))


def _generate(decoder: Decoder, tokens: Sequence[int], keep_logits: bool, counts: Counts) -> Pass:
    """Generate and time every token: the mode has just read a prompt, so its graph is built."""
    done = Pass()
    counts.begin()
    for token in tokens:
        done.seconds.append(decoder.decode([token]))
        if keep_logits:
            done.logits.append(np.asarray(decoder.logits()))
    counts.end()
    return done
