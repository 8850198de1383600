"""What is done, what is left, and how much of the time was measured work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from edgekv.lab.engine.effort import Effort, Work
from edgekv.rates.measuring import interrupts

Show = Callable[[str, int, int, float | None], None]
"""Called with what is being done, the tokens done and planned, and the seconds that are left where that is known."""


class Meter:
    """Of one run, from where it is made. `clock` gives seconds."""

    def __init__(self, show: Show = lambda what, done, total, left: None, clock: Callable[[], float] = time.perf_counter):
        self._show, self._clock, self._began = show, clock, clock()
        self._effort = Effort([])
        self.measured = 0.0
        """Seconds in passes that rows are made of."""

    def plan(self, works: Sequence[Work]) -> None:
        """What one model comes to, in the order in which it will be done."""
        self._effort = Effort(works)

    def say(self, what: str) -> None:
        """Show where it is; raises KeyboardInterrupt where it is to end (`edgekv.rates.measuring.interrupts`)."""
        interrupts.check()
        self._show(what, self._effort.n_done, max(1, self._effort.n_tokens), self._effort.seconds_left())

    def add(self, work: Work, seconds: float, measured: bool = False) -> None:
        self._effort.add(work, seconds)
        if measured:
            self.measured += seconds

    def finish(self) -> None:
        """The first work that is left is done."""
        self._effort.finish()

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    @property
    def share(self) -> float:
        """Of the time, that was measured work."""
        return self.measured / self.seconds if self.seconds else 0.0
