"""The fastest of some steps of a small model: what rates of this machine are made of."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from edgekv.bench.harness.decoder import Decoder
from edgekv.live.runtime import Runtime
from edgekv.vocab import KvMode

LEAST_STEPS, PATIENCE_S = 2, 0.2
_NO_TIERS = {"policy": "none", "kv_budget": 0}


def set_mode(decoder: Decoder, mode: KvMode, **changes: Any) -> Runtime:
    """Without tiers."""
    runtime = decoder.kv
    assert runtime is not None, "a context of its own has one"
    runtime.configure(runtime.options.with_(mode=mode, **_NO_TIERS, **changes))
    return runtime


def best_step(decoder: Decoder, n_tokens: int, depth: int, cold: np.ndarray | None = None) -> float:
    """Seconds of the fastest of the steps behind `depth` tokens that a short while allows: other programs make any of them slower, and
    none faster. The first is not counted. cold: read before each step, so that the caches hold nothing of the last one, as after the
    weights of a model."""
    began, seconds = time.perf_counter(), list[float]()
    while len(seconds) <= LEAST_STEPS or time.perf_counter() < began + PATIENCE_S:
        decoder.rewind(depth)
        if cold is not None:
            cold.max()
        seconds.append(decoder.decode([300 + len(seconds) % 8] * n_tokens))
    decoder.rewind(depth)
    return min(seconds[1:])
