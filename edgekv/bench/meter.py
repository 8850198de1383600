"""The progress of a run, the time left, and the time of the passes."""

import time
from collections.abc import Callable, Sequence

from edgekv.common.effort import Effort, Work
from edgekv.measure import interrupts

Show = Callable[[str, int, int, float | None], None]
"""Called with the current activity, the tokens done and planned, and the seconds left if known."""


class Meter:
    """Measures one run, from its creation on. `clock` gives seconds."""

    def __init__(self, show: Show = lambda what, done, total, left: None, clock: Callable[[], float] = time.perf_counter):
        self._show, self._clock, self._began = show, clock, clock()
        self._effort = Effort([])
        self.measured = 0.0
        """Seconds of the passes that rows report."""

    def plan(self, works: Sequence[Work]) -> None:
        """Set the works of one model, in order."""
        self._effort = Effort(works)

    def say(self, what: str) -> None:
        """Show the progress. Raises KeyboardInterrupt after Ctrl-C (`edgekv.measure.interrupts`)."""
        interrupts.check()
        self._show(what, self._effort.n_done, max(1, self._effort.n_tokens), self._effort.seconds_left())

    def add(self, work: Work, seconds: float, measured: bool = False) -> None:
        self._effort.add(work, seconds)
        if measured:
            self.measured += seconds

    def finish(self) -> None:
        """End the first remaining work."""
        self._effort.finish()

    @property
    def seconds(self) -> float:
        return self._clock() - self._began
