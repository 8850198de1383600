"""The measured speed at which a place delivers rows, and whether smaller rows would come sooner."""

import time
from collections.abc import Callable

from edgekv.common.enums import CacheCodec

FADES = 0.9
"""An observation loses this share of its weight with each newer one."""

LEAST_SEEN_S = 0.05
"""Reads of less in all say more of what a call costs, and of other work on the machine, than of the place. None is slow that takes less."""

STALE_S = 60.0
"""An observation this old is checked again."""

SLOW_RATE = 150e6
"""Bytes a second: rows of a slower place come sooner if they are rounded (LOG.md)."""


def rounds(codec: CacheCodec, rate: "Rate", far: bool, written: "Rate | None" = None) -> bool:
    """Whether a place keeps rounded rows. far: it is on another machine, and slow until it is measured. `written`: how fast it took blocks, which counts until
    it has given some."""
    if codec is not CacheCodec.AUTO:
        return codec is CacheCodec.ROUND
    if seconds := rate.stored_s(SLOW_RATE):
        return seconds > 1
    return far and not (written is not None and written.reached(SLOW_RATE))


class Rate:
    """Thread-safe enough: an observation that two threads lose comes again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._n_bytes = self._seconds = self._stored_bytes = self._stored_seconds = 0.0
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

    def brings(self, n_bytes: float, within_s: float, unpacked: bool) -> bool:
        """Whether so many bytes of rows come in that time, by however little was seen. The calls' own time counts, so the place is faster still. unpacked:
        none of them is rounded, so the time counts in which the place gave bytes as it keeps them."""
        n, seconds = (self._stored_bytes, self._stored_seconds) if unpacked else (self._n_bytes, self._seconds)
        return seconds > 0 and n_bytes * seconds <= n * within_s

    def stored(self, n_bytes: int, seconds: float) -> None:
        """Bytes as the place keeps them, and the time in which it gave them: without that of unpacking them."""
        self._stored_bytes, self._stored_seconds = FADES * self._stored_bytes + n_bytes, FADES * self._stored_seconds + seconds

    def stored_s(self, n_bytes: float) -> float:
        """Seconds for n_bytes as the place keeps them; 0: unknown yet."""
        return n_bytes * self._stored_seconds / self._stored_bytes if self._stored_bytes and self._stored_seconds >= LEAST_SEEN_S else 0.0

    def reached(self, rate: float) -> bool:
        """Whether this many bytes a second, as the place keeps them, were seen at least. The calls' own time counts, so the place is faster still."""
        return self._stored_bytes > rate * self._stored_seconds

    @property
    def stale(self) -> bool:
        """Whether the last observation is old."""
        return self._clock() - self._when > STALE_S
