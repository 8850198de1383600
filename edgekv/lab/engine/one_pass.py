"""One pass of a test in one mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgekv.lab.engine.filled import Contexts
from edgekv.lab.engine.modes import BenchMode
from edgekv.lab.engine.passes import WARMUP_TOKENS, Pass, decode, warm_up, weights_alone
from edgekv.lab.engine.request import BenchTest
from edgekv.rates.measuring.decoder import Decoder
from edgekv.vocab import KvMode

LIMIT_TOKENS = 4
"""Tokens of a turn with an empty cache."""

_WARMUP_SHARE = 8
"""Of the tokens that are generated, one in so many before them lets a policy see attention."""


def margin(test: BenchTest) -> int:
    """Tokens of context that a test takes behind its depth."""
    return test.n_tokens + 1


def one_pass(contexts: Contexts, mode: BenchMode, test: BenchTest, n_threads: int, keep_logits: bool) -> tuple[float, Pass | None]:
    """Seconds that the prompt took, and what was generated. The cache holds `test.depth` tokens before and after. What a change of mode
    costs, and a policy's first look, are not timed."""
    decoder = contexts.of(mode)
    assert decoder is not None
    decoder.set_threads(n_threads)
    _enter(contexts, decoder, mode, test)
    tokens = contexts.token(test.depth, margin(test))
    try:
        seconds = 0.0
        if test.n_prompt:
            decoder.decode(tokens[:1])  # builds the graph of the mode
            decoder.rewind(test.depth)
            seconds = _read(decoder, tokens[: test.n_prompt], contexts.opening.n_batch)
        if not test.n_gen:
            return seconds, None
        if test.n_prompt:
            return seconds, _generate(decoder, tokens[test.n_prompt : test.n_tokens], keep_logits)
        return 0.0, decode(decoder, tokens, keep_logits)
    finally:
        decoder.rewind(test.depth)


def targets(contexts: Contexts, test: BenchTest) -> list[int]:
    """The successor of each token that a test without a prompt decodes."""
    return contexts.token(test.depth + 1, margin(test))


def limit(contexts: Contexts, n_threads: int) -> list[float]:
    """Seconds of a token with next to nothing in the cache: the weights alone."""
    contexts.small.set_threads(n_threads)
    return weights_alone(contexts.small, contexts.token(0, LIMIT_TOKENS + 1))


def _enter(contexts: Contexts, decoder: Decoder, mode: BenchMode, test: BenchTest) -> None:
    if decoder.kv is None:
        return
    if mode.changes["mode"] is KvMode.SPARSE and test.n_gen and not test.n_prompt:
        n = min(WARMUP_TOKENS, test.n_gen // _WARMUP_SHARE, test.depth)
        decoder.rewind(test.depth - n)
        warm_up(decoder, mode, contexts.base, contexts.token(test.depth - n, n))
    else:
        decoder.kv.configure(mode.options(contexts.base, test.depth + test.n_tokens))


def _read(decoder: Decoder, tokens: Sequence[int], n_batch: int) -> float:
    return sum(decoder.decode(tokens[first : first + n_batch]) for first in range(0, len(tokens), n_batch))


def _generate(decoder: Decoder, tokens: Sequence[int], keep_logits: bool) -> Pass:
    """All of them timed: a prompt has just been read in this mode."""
    done = Pass()
    for token in tokens:
        done.seconds.append(decoder.decode([token]))
        if keep_logits:
            done.logits.append(np.asarray(decoder.logits()))
    return done
