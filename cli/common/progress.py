"""Progress on standard error: a bar on a terminal, elsewhere a line now and then."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import click

from edgekv.common.units import duration

EVERY_SECONDS = 30.0
"""Seconds between two lines within a part."""

LEAST_SECONDS = 2.0
"""Least seconds between any two lines: short runs stay silent, and many short parts do not make a line each."""

LATEST = 3
"""The last parts of a prompt, over which its speed is measured."""

Show = Callable[..., None]
"""Called with (name of the work, finished amount, whole amount), and with the seconds left if the caller knows them better than by
proportion."""


@contextmanager
def progress_bar(of_bytes: bool = False) -> Iterator[Show]:
    """Yields the function that shows progress. A text up to ": " names a part of the run. of_bytes: amounts are bytes, and a terminal shows their
    rate."""
    if not sys.stderr.isatty():
        lines = Lines()
        yield lines
        lines.close()
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    text, bar_column, share, left = Progress.get_default_columns()
    columns = (text, bar_column, DownloadColumn(binary_units=True), TransferSpeedColumn(), left) if of_bytes else (text, bar_column, share, left)

    def show(what: str, done: int, total: int, seconds_left: float | None = None) -> None:
        left = "" if seconds_left is None else f", about {duration(seconds_left)} left"
        bar.update(task, description=(what + left).replace("[", "\\["), completed=done, total=total)

    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("load", total=None)
        yield show


@contextmanager
def measuring_bar() -> Iterator[Show]:
    """Yields the function that shows progress of a few seconds: one line when the work begins, and on a terminal a bar. Nothing if there is none."""
    with ExitStack() as stack:
        bar: Show | None = None

        def show(what: str, done: int, total: int) -> None:
            nonlocal bar
            if bar is None:
                click.echo(what, err=True)
                bar = stack.enter_context(progress_bar()) if sys.stderr.isatty() else lambda *told: None
            bar(what, done, total)

        yield show


class ReadingBar:
    """Progress of reading a prompt: the recent speed and the time left. A token takes longer behind a longer cache, so the time is fitted to
    the parts so far: the time of a token is linear in the tokens before it."""

    def __init__(self, n_total: int, n_cached: int, clock: Callable[[], float] = time.monotonic):
        """n_cached: the first tokens of n_total, which are known already. clock(): seconds."""
        from edgekv.common.effort import Effort, Kind, Work

        self._work = lambda position, n_tokens: Work.after(Kind.READ, position, n_tokens)
        self._effort = Effort([self._work(n_cached, n_total - n_cached)])
        self._clock, self._latest = clock, deque([(clock(), n_cached)], maxlen=LATEST + 1)

    def at(self, n_tokens: int) -> None:
        """Say that `n_tokens` have been read."""
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
        """The estimated seconds left; None before the second part: one part does not show how the time grows."""
        return self._effort.seconds_left() if len(self._latest) > 2 else None


class Lines:
    """For logs: a line at the end of each part, and every EVERY_SECONDS within one. clock(): seconds; say(line)."""

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
        """Finish the last part."""
        if self._said:
            self._line(f"{self._part} finished, after {duration(self._clock() - self._begun)} in all", self._clock())

    def _line(self, text: str, now: float) -> None:
        self._last, self._said = now, True
        self._say(text)
