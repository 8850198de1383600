"""Types of parameters that are comma-separated lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from edgekv.cli.common.choices import items
from edgekv.cli.common.shared_options import Parsed
from edgekv.common.errors import ConfigError
from edgekv.common.units import parse_share
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
