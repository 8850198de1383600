"""The lines that a command begins with: what it found, each with a mark. A terminal wraps them at words; elsewhere each is one line."""

import sys
from collections.abc import Sequence
from enum import Enum

import click

Parts = Sequence[str | tuple[str, str]]
"""Texts, some with their style, as rich's `Text.assemble` takes them."""

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
    label, aside = f"{label:<{_LABEL}}", f" ({aside})" if aside else ""
    if mark is Mark.NEXT:
        _show(label + text + aside, [label, (text, "bold default")], mark=mark)
    else:
        _show(label + text + aside, [label], [text, (aside, "dim")], mark)


def fact(label: str, text: str, width: int) -> None:
    """Print a label, padded to `width`, and its text."""
    _show(f"{label:<{width}}{text}", [(f"{label:<{width}}", "dim")], [text])


def verdict(mark: Mark, text: str) -> None:
    """Print the one sentence that matters most."""
    _show(text, [], [(text, "bold")], mark)


def heading(name: str, text: str) -> None:
    """Print what all that follows is about."""
    _show(f"{name} {text}\n", [(name, "bold"), f" {text}\n"])


def prose(text: str, style: str = "", err: bool = False) -> None:
    """Print a sentence on standard output, or on standard error."""
    _show(text, [(text, style)], err=err)


def _show(plain: str, begin: Parts, text: Parts | None = None, mark: Mark | None = None, err: bool = False) -> None:
    """Print the plain text; on a terminal the mark, `begin`, and beside them `text`, which goes on below its own beginning."""
    if not (sys.stderr if err else sys.stdout).isatty():
        click.echo(plain, err=err)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, stderr=err)
    console.width = min(console.width, WIDEST)
    sign, colour = ("", "") if mark is None else mark.value
    before = f"{sign if console.encoding.startswith('utf') else ' '} " if mark is not None else ""
    head = Text.assemble(before, *begin, style=colour)
    if text is None:
        console.print(head, soft_wrap=mark is Mark.NEXT)
        return
    row = Table.grid()
    row.add_column(width=len(head))
    row.add_column(overflow="fold")
    row.add_row(head, Text.assemble(*text))
    console.print(row)
