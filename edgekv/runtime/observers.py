"""Functions that a context calls after each ubatch. They do not disturb the policy, which works from run to run."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

if TYPE_CHECKING:
    from edgekv._native.native_arrays import RunSums


class UbatchReport(Struct, frozen=True):
    """One ubatch, as an observer sees it. The arrays are views that live until the observer returns."""

    layers: tuple[int, ...]
    """The hooked layers, as the model numbers them."""
    mass_max: np.ndarray
    """float32 [len(layers), kv_head, page]: attention mass, the maximum over the query heads of the group, summed over tokens."""
    mass_sum: np.ndarray
    """The same, summed over the query heads of the group: a head's pages add up to the group size for each token, less the sinks' part. Mode
    sparse estimates it from the rows that were read; it is right on average over tokens."""
    n_tokens: int
    hooked: bool
    """Nodes of ours attended in at least one layer. False in mode off, and for prompts on a device."""
    page_tokens: int
    pages_per_stream: int
    n_observed: int = 0
    """The tokens whose mass this is: all of a decode step, the last 16 of each stream of a prompt (option `observe_prompt`). 0: nothing was
    observed, and the mass is zero."""


log = logging.getLogger("edgekv")

Observer = Callable[[UbatchReport], None]


class Observers(list[Observer]):
    """The observers of one context. Append and remove them while nothing decodes.

    layers: `UbatchReport.layers`. read(): the native observation. download(array): the array in host memory. watch(on): make the context
    report each ubatch. Mass and counts add up over a run of the policy; a ubatch inside a run gets the difference from the ubatch before, as
    exact as a float32 sum.
    """

    def __init__(self, layers: tuple[int, ...], read: Callable[[], RunSums], download: Callable[[Any], np.ndarray],
                 watch: Callable[[bool], None]):
        super().__init__()
        self._layers, self._read, self._download, self._watch = layers, read, download, watch
        self._earlier: tuple | None = None  # the run's sums, up to the ubatch before

    def append(self, observer: Observer) -> None:
        if not self:
            self._earlier = _kept(self._sums(self._read()))
            self._watch(True)
        super().append(observer)

    def remove(self, observer: Observer) -> None:
        super().remove(observer)
        self._watch(bool(self))

    def clear(self) -> None:
        super().clear()
        self._watch(False)

    def tell(self, seen: RunSums) -> None:
        """Call all observers, after a ubatch; on a device this waits for it."""
        if not self:
            return
        sums, earlier = self._sums(seen), self._earlier
        self._earlier = None if seen.ends_run else _kept(sums)
        if seen.n_ubatches > 1 and earlier is not None:  # not the run's first
            sums = tuple(now - before for now, before in zip(sums, earlier))
        mass_max, mass_sum, n_tokens, n_tokens_hooked, n_observed = sums
        ubatch = UbatchReport(self._layers, mass_max, mass_sum, n_tokens, n_tokens_hooked > 0, seen.page_tokens, seen.pages_per_stream,
                        n_observed)
        for observer in list(self):
            try:
                observer(ubatch)
            except Exception as error:
                if _of_signal(error):
                    raise
                self.remove(observer)
                log.exception("the observer %r failed, and is called no more", observer)

    def _sums(self, seen: RunSums) -> tuple:
        return (self._download(seen.mass_max), self._download(seen.mass_sum), seen.n_tokens, seen.n_tokens_hooked,
                seen.n_tokens_observed)


def _of_signal(error: Exception) -> bool:
    """Whether a signal's handler raised it, such as one for `signal.alarm`: that is meant for the caller, wherever it came up."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _kept(sums: tuple) -> tuple:
    return (*(np.array(mass) for mass in sums[:2]), *sums[2:])
