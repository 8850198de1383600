"""The lines that a command begins with: what it found, each with a mark. A terminal wraps them at words; elsewhere each is one line."""

from __future__ import annotations

import sys
from enum import Enum
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDEST = 100
"""Characters of a line, however wide the terminal."""

_LABEL = 10


class Mark(Enum):
    """In a terminal that can show it: a sign, and its colour."""

    GOOD = "✓", "green"
    BAD = "✗", "bold red"
    NEXT = "→", "cyan"
    DOUBT = "!", "yellow"
    MORE = " ", ""


def say(mark: Mark, label: str, text: str, aside: str = "") -> None:
    """Print a finding on standard output. aside: what is less important, in brackets behind it. With Mark.NEXT the text is a command to copy, in one
    piece."""
    if not sys.stdout.isatty():
        click.echo(f"{label:<{_LABEL}}{text}" + (f" ({aside})" if aside else ""))
        return
    from rich.text import Text

    console = _console()
    begin = _sign(mark, console).append(f"{label:<{_LABEL}}")
    if mark is Mark.NEXT:
        console.print(begin.append(text, "bold default"), soft_wrap=True)
        return
    _hang(console, begin, Text(text).append(f" ({aside})" if aside else "", "dim"))


def fact(label: str, text: str, width: int) -> None:
    """Print a label, padded to `width`, and its text."""
    if not sys.stdout.isatty():
        click.echo(f"{label:<{width}}{text}")
        return
    from rich.text import Text

    _hang(_console(), Text(f"{label:<{width}}", "dim"), Text(text))


def verdict(mark: Mark, text: str) -> None:
    """Print the one sentence that matters most."""
    if not sys.stdout.isatty():
        click.echo(text)
        return
    from rich.text import Text

    console = _console()
    _hang(console, _sign(mark, console), Text(text, "bold"))


def heading(name: str, text: str) -> None:
    """Print what all that follows is about."""
    if not sys.stdout.isatty():
        click.echo(f"{name} {text}\n")
        return
    from rich.text import Text

    _console().print(Text(name, "bold").append(f" {text}\n", "not bold"))


def prose(text: str, style: str = "", err: bool = False) -> None:
    """Print a sentence on standard output, or on standard error."""
    if not (sys.stderr if err else sys.stdout).isatty():
        click.echo(text, err=err)
        return
    from rich.text import Text

    _console(err).print(Text(text, style))


def _sign(mark: Mark, console: Console) -> Text:
    from rich.text import Text

    sign, colour = mark.value
    return Text(f"{sign if console.encoding.startswith('utf') else ' '} ", colour)


def _hang(console: Console, begin: Text, text: Text) -> None:
    """Print a text that goes on below its beginning."""
    from rich.table import Table

    row = Table.grid()
    row.add_column(width=len(begin))
    row.add_column(overflow="fold")
    row.add_row(begin, text)
    console.print(row)


def _console(err: bool = False) -> Console:
    from rich.console import Console

    console = Console(highlight=False, stderr=err)
    console.width = min(console.width, WIDEST)
    return console
