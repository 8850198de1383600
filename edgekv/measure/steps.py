"""The fastest of several steps of a small model: the raw material of rates."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import numpy as np

from edgekv.common.enums import KvMode
from edgekv.measure.busy import Others
from edgekv.measure.decoder import Decoder
from edgekv.runtime.runtime import Runtime

T = TypeVar("T")

LEAST_SAMPLES, PATIENCE_S, MOST_S = 3, 0.03, 0.06
_NEAR = 1.05
"""Samples within this factor of the fastest agree."""

HELD = 1
"""Tokens that a cache holds behind each rewind besides a round number of them: the first token of a page of memory asks for that memory."""

_NO_TIERS = {"policy": "none", "kv_budget": 0}


def set_mode(decoder: Decoder, mode: KvMode, **changes: Any) -> Runtime:
    """Set a mode without tiers."""
    runtime = decoder.kv
    assert runtime is not None, "a context of its own has one"
    runtime.configure(runtime.options.with_(mode=mode, **_NO_TIERS, **changes))
    return runtime


def rotated(names: Sequence[T], turn: int) -> tuple[T, ...]:
    """The order of a turn. Another one begins each turn, for the first pass of a turn may meet another machine than the last one."""
    shift = turn % max(1, len(names))
    return (*names[shift:], *names[:shift])


def timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock, and seconds of processor time of all threads."""
    began, own = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - own


def fastest(sample: Callable[[], tuple[float, float]], n_threads: int) -> float:
    """Seconds of the fastest of many short samples (`timed`), each of which `n_threads` threads compute: other programs make any of them
    slower, and none faster. More are taken until the LEAST_SAMPLES fastest are near each other, or MOST_S have passed. Where others are busy,
    processor time says more than the clock: threads wait for each other by spinning, so that it is too much rather than too little."""
    others, began, samples = Others(), time.perf_counter(), list[tuple[float, float]]()
    while True:
        samples.append(sample())
        elapsed = time.perf_counter() - began
        if elapsed > MOST_S or len(samples) >= LEAST_SAMPLES and elapsed > PATIENCE_S and _agree(samples):
            return shortest(samples, n_threads, others)


def in_turns(names: Collection[T], step: Callable[[T], float]) -> dict[T, float]:
    """The shorter seconds of two turns of a step by each name, since the first tenth of a second is slower than all that follow."""
    first, second = ({name: step(name) for name in names} for _ in range(2))
    return {name: min(first[name], second[name]) for name in names}


def shortest(samples: Sequence[tuple[float, float]], n_threads: int, others: Others) -> float:
    """Seconds of the fastest sample. others: counted meanwhile."""
    by_clock = min(seconds for seconds, _ in samples)
    return min(by_clock, min(seconds for _, seconds in samples) / n_threads) if others.busy() else by_clock


def _agree(samples: list[tuple[float, float]]) -> bool:
    seconds = sorted(seconds for seconds, _ in samples)
    return seconds[LEAST_SAMPLES - 1] <= _NEAR * seconds[0]


def best_step(decoder: Decoder, n_tokens: int, depth: int, cold: np.ndarray | None = None) -> float:
    """Seconds of the fastest step behind `depth` tokens. cold: read before each step, so that the caches hold nothing of the last one, as after
    the weights of a model."""
    at = 0

    def step() -> tuple[float, float]:
        nonlocal at
        at += 1
        decoder.rewind(depth)
        if cold is not None:
            cold.max()
        tokens = [260 + (at + i) % 120 for i in range(n_tokens)]  # a mixture sends them to different experts
        return timed(lambda: decoder.decode(tokens))

    step()  # the first one builds graphs and touches memory
    seconds = fastest(step, decoder.n_threads)
    decoder.rewind(depth)
    return seconds
