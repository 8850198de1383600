"""Comma-separated lists: types of parameters, and numbers as llama-bench takes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from edgekv.cli.common.choices import items
from edgekv.cli.common.shared_options import Parsed
from edgekv.common.errors import ConfigError
from edgekv.common.units import MOST_TOKENS, parse_share
from edgekv.config.assignments import split_modes

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class CommaList(click.ParamType):
    """A list such as "512,4096" with items of another parameter type."""

    def __init__(self, item: click.ParamType, name: str):
        self.item, self.name = item, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if not isinstance(value, str):
            return tuple(value)
        return tuple(self.item.convert(part.strip(), param, ctx) for part in value.split(","))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Completions of the item after the last comma."""
        known = self.item.shell_complete(ctx, param, "")
        return items([item.value for item in known], incomplete, ",")


class ModeList(click.ParamType):
    """A list of bench modes; changes of a mode may contain commas themselves."""

    name = "MODE,MODE,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        return split_modes(value) if isinstance(value, str) else tuple(value)


def _share(text: str) -> float:
    """A share above zero, such as 12.5% or 0.125. Raises ConfigError."""
    share = parse_share(text)
    if share == 0:
        raise ConfigError("the share must be above 0")
    return share


BUDGETS = CommaList(Parsed("SHARE", _share), "SHARE,...")
NAMES = CommaList(click.STRING, "NAME,...")

MOST = 1000
"""Numbers of one list."""

_PART = re.compile(r"(\d+)(?:-(\d+)(?:([+*])(\d+))?)?")


def numbers(text: str, most: int = MOST_TOKENS) -> tuple[int, ...]:
    """The numbers of "512", "1,2,4", "0-8192+2048" or "1-8*2", in its order, each at most `most`. Raises ConfigError."""
    found: list[int] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"{part.strip()!r} is not a number or range; write 512, or 0-8192+2048, or 1-8*2, with commas between them")
        first = _bounded(match[1], most)
        last = _bounded(match[2], most) if match[2] else first
        if last < first:
            raise ConfigError(f"the range {part.strip()!r} ends before it begins")
        step = _bounded(match[4], most) if match[4] else 1
        while first <= last:
            found.append(first)
            if len(found) > MOST:
                raise ConfigError(f"{text!r} names more than {MOST} numbers; take a larger step")
            following = first * step if match[3] == "*" else first + step
            if following <= first:
                raise ConfigError(f"the range {part.strip()!r} never ends: {first} {match[3]} {step} is not more than {first}")
            first = following
    return tuple(found)


def pair(text: str) -> tuple[int, int]:
    """Tokens of a prompt and of what is generated after it, "512,128". Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", text)
    if match is None:
        raise ConfigError(f"{text!r} is not a pair of numbers; write tokens of the prompt, a comma, tokens after it: 512,128")
    return _bounded(match[1]), _bounded(match[2])


def _bounded(digits: str, most: int = MOST_TOKENS) -> int:
    if len(digits) > 20 or (n := int(digits)) > most:
        raise ConfigError(f"{digits} is too large; give {most:,} or less")
    return n
