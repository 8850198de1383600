"""Checks this machine's kept rates against the first tokens of a loaded model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgekv import _native
from edgekv.common.enums import KvMode
from edgekv.planning.correction import correct
from edgekv.planning.host import KeptRates, kept_for
from edgekv.planning.roofline import HostRoofline

if TYPE_CHECKING:
    from edgekv.planning.allocations import ContextRequest
    from edgekv.runtime.observers import UbatchReport
    from edgekv.runtime.runtime import Runtime

N_TOKENS = 4


class FirstTokens:
    """Times the first tokens that are decoded one by one without a pause. Then it calls `done` with the fastest token's seconds, on a thread of its
    own, and detaches. Make it while nothing decodes."""

    def __init__(self, runtime: Runtime, done: Callable[[float], object]):
        self._runtime, self._done = runtime, done
        self._last: float | None = None
        self._seconds: list[float] = []
        runtime.observers.append(self._decoded)

    def _decoded(self, ubatch: UbatchReport) -> None:
        now, alone = time.perf_counter(), ubatch.n_tokens == 1
        if alone and self._last is not None:
            self._seconds.append(now - self._last)
        self._last = now if alone else None
        if len(self._seconds) == N_TOKENS:
            self._runtime.observers.remove(self._decoded)
            threading.Thread(target=self._done, args=(min(self._seconds),), name="edgekv-rates", daemon=True).start()


def decode_speed(request: ContextRequest) -> Callable[[KvMode, int], float] | None:
    """Tokens a second in a mode behind a number of tokens, by the kept rates of this processor; None: they were never measured, or a GPU decodes."""
    rates = kept_for(request.model, request.kv, KeptRates(request.n_threads, _native.isa())) if request.room is None else None
    if rates is None:
        return None
    roofline = HostRoofline(request.model, request.kv, rates)
    return lambda mode, depth: 1 / roofline.decode_seconds(mode, depth)


def watch(runtime: Runtime, request: ContextRequest) -> None:
    """Correct the kept rates by the first tokens on the processor. They count as tokens at depth 0: their depth is unknown here, and a deeper
    token is never faster."""
    model, kv, kept = request.model, request.kv, KeptRates(request.n_threads, _native.isa())
    if request.room is None and kept_for(model, kv, kept) is not None:
        FirstTokens(runtime, lambda seconds: correct(kept, model, kv, runtime.mode, 0, seconds))
