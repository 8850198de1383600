"""A measurement that an error or a signal ends still prints what it has."""

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from edgekv.cli.common.progress import Show, progress_bar
from edgekv.cli.common.verdict import prose
from edgekv.common.errors import EdgeKVError


class Ending(Struct):
    show: Show
    busy: bool = False
    """Whether other programs computed meanwhile; known at the end."""
    problem: BaseException | None = None
    """What ended the measurement early."""

    def say(self, sentence: str | None, output: str) -> None:
        """Print the last sentence: below a table, and elsewhere on standard error."""
        if sentence is not None:
            prose("\n" * (output == "table") + sentence + "; the machine was busy" * self.busy, err=output != "table")

    def close(self) -> None:
        """Raise what ended the measurement early."""
        if self.problem is not None:
            raise self.problem


@contextmanager
def ending() -> Iterator[Ending]:
    """Inside, an error of EdgeKV's, Ctrl-C or SIGTERM ends the block, and `close` raises it when the rows are printed."""
    from edgekv.measure.busy import Others
    from edgekv.measure.interrupts import Interrupts

    with progress_bar() as show, Interrupts():
        found, others = Ending(show), Others()
        try:
            yield found
        except (EdgeKVError, KeyboardInterrupt) as error:
            found.problem = error
    found.busy = others.busy() > 0
