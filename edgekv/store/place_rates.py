"""The measured speed at which a place delivers rows."""

import time
from collections.abc import Callable

FADES = 0.9
"""An observation loses this share of its weight with each newer one."""

LEAST_SEEN_S = 0.05
"""Reads of less in all say more of what a call costs, and of other work on the machine, than of the place. None is slow that takes less."""

STALE_S = 60.0
"""An observation this old is checked again."""


class Rate:
    """Thread-safe enough: an observation that two threads lose comes again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._n_bytes = self._seconds = 0.0
        self._when = float("-inf")

    def seen(self, n_bytes: float, seconds: float) -> None:
        """`n_bytes`: bytes of usable rows; 0: the time was wasted."""
        self._n_bytes, self._seconds = FADES * self._n_bytes + n_bytes, FADES * self._seconds + seconds
        self._when = self._clock()

    def takes_s(self, n_bytes: float) -> float:
        """Seconds for n_bytes; 0: unknown yet; infinity: nothing ever came."""
        if self._seconds < LEAST_SEEN_S:
            return 0.0
        return n_bytes * self._seconds / self._n_bytes if self._n_bytes else float("inf")

    @property
    def stale(self) -> bool:
        """Whether the last observation is old."""
        return self._clock() - self._when > STALE_S
