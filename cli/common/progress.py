"""Progress on standard error: a bar where that is a terminal, elsewhere a line every now and then."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from edgekv.amounts import duration

EVERY_SECONDS = 30.0
"""Between two lines within a part."""

LEAST_SECONDS = 2.0
"""Between two lines at all: short runs are silent, and many short parts do not make a line each."""

LATEST = 3
"""Parts of a prompt that its speed is taken over."""

Show = Callable[..., None]
"""Called with (what is being done, how much of it is done, how much there is), and with the seconds that are left where the caller knows
better than a rule of three."""


@contextmanager
def progress_bar() -> Iterator[Show]:
    """Gives the function that shows what is being done. What stands before ": " in that is a part of the run."""
    if not sys.stderr.isatty():
        lines = Lines()
        yield lines
        lines.close()
        return
    from rich.console import Console
    from rich.progress import Progress

    def show(what: str, done: int, total: int, seconds_left: float | None = None) -> None:
        left = "" if seconds_left is None else f", about {duration(seconds_left)} left"
        bar.update(task, description=(what + left).replace("[", "\\["), completed=done, total=total)

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("load", total=None)
        yield show


class ReadingBar:
    """A prompt while it is read: its speed of late, and the time left. Behind a longer cache a token takes longer, so that the time is
    fitted to what the parts have taken so far: in a token, linear in what stands before it."""

    def __init__(self, n_total: int, n_cached: int, clock: Callable[[], float] = time.monotonic):
        """The first `n_cached` of `n_total` tokens are there already. `clock` gives seconds."""
        from edgekv.lab.engine.effort import Effort, Kind, Work

        self._work = lambda position, n_tokens: Work.after(Kind.READ, position, n_tokens)
        self._effort = Effort([self._work(n_cached, n_total - n_cached)])
        self._clock, self._latest = clock, deque([(clock(), n_cached)], maxlen=LATEST + 1)

    def at(self, n_tokens: int) -> None:
        """`n_tokens` are there now."""
        now, (before, n_before) = self._clock(), self._latest[-1]
        if n_tokens > n_before:
            self._effort.add(self._work(n_before, n_tokens - n_before), now - before)
            self._latest.append((now, n_tokens))

    @property
    def tokens_per_second(self) -> float | None:
        """Over the last LATEST parts; None before the first."""
        (first, n_first), (last, n_last) = self._latest[0], self._latest[-1]
        return (n_last - n_first) / (last - first) if last > first else None

    @property
    def seconds_left(self) -> float | None:
        """None before the second part: one says nothing of how much longer the others take."""
        return self._effort.seconds_left() if len(self._latest) > 2 else None


class Lines:
    """For logs: a line when a part is finished, and every EVERY_SECONDS within one. `clock` gives seconds, `say` gets the lines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, say: Callable[[str], None] = lambda line: click.echo(line, err=True)):
        self._clock, self._say = clock, say
        self._begun = self._counted_from = self._last = clock()
        self._part, self._total, self._done, self._first = "", 0, 0, 0
        self._said = False

    def __call__(self, what: str, done: int, total: int, seconds_left: float | None = None) -> None:
        now, part = self._clock(), what.partition(": ")[0]
        if total != self._total or done < self._done:  # another count begins
            self._counted_from, self._total, self._first = now, total, done
        finished = self._part if part != self._part else ""
        self._part, self._done = part, done
        if now - self._last < (LEAST_SECONDS if finished else EVERY_SECONDS):
            return
        if seconds_left is None and done > self._first:
            seconds_left = (now - self._counted_from) * (total - done) / (done - self._first)
        left = "" if seconds_left is None else f", about {duration(seconds_left)} left"
        self._line(f"{f'{finished} finished; ' if finished else ''}{what}, {100 * done // max(1, total)} % done{left}", now)

    def close(self) -> None:
        """The last part is finished."""
        if self._said:
            self._line(f"{self._part} finished, after {duration(self._clock() - self._begun)} in all", self._clock())

    def _line(self, text: str, now: float) -> None:
        self._last, self._said = now, True
        self._say(text)
