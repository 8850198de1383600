"""How fast a place gives rows, as it was seen."""

from __future__ import annotations

import time
from collections.abc import Callable

FADES = 0.9
"""What was seen counts so much less for each that is seen behind it."""

LEAST_SEEN_S = 0.05
"""Reads of less in all say more of what a call costs, and of other work on the machine, than of the place. None is slow that takes less."""

STALE_S = 60.0
"""What was seen so long ago is tried again."""


class Rate:
    """Thread-safe enough: a figure that is lost between two threads is seen again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._n_bytes = self._seconds = 0.0
        self._when = float("-inf")

    def seen(self, n_bytes: float, seconds: float) -> None:
        """`n_bytes`: of rows that can be used; 0: the time was lost."""
        self._n_bytes, self._seconds = FADES * self._n_bytes + n_bytes, FADES * self._seconds + seconds
        self._when = self._clock()

    def takes_s(self, n_bytes: float) -> float:
        """For so many bytes; 0: nobody knows yet, infinity: none ever came."""
        if self._seconds < LEAST_SEEN_S:
            return 0.0
        return n_bytes * self._seconds / self._n_bytes if self._n_bytes else float("inf")

    @property
    def stale(self) -> bool:
        """Nothing was seen for a while."""
        return self._clock() - self._when > STALE_S
