"""Parameters that are lists, written with commas."""

from __future__ import annotations

from typing import Any

import click

from edgekv.config import parse_share
from edgekv.errors import ConfigError


class CommaList(click.ParamType):
    """A list such as "512,4096", each item of another parameter type."""

    def __init__(self, item: click.ParamType, name: str):
        self.item, self.name = item, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if not isinstance(value, str):
            return tuple(value)
        return tuple(self.item.convert(part.strip(), param, ctx) for part in value.split(","))


class Share(click.ParamType):
    """A share above zero, such as 12.5% or 0.125."""

    name = "SHARE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if not isinstance(value, str):
            return value
        try:
            share = parse_share(value)
        except ConfigError as error:
            self.fail(f"{error}.", param, ctx)
        if share == 0:
            self.fail("the share must be above 0.", param, ctx)
        return share


BUDGETS = CommaList(Share(), "SHARE,...")
NAMES = CommaList(click.STRING, "NAME,...")
