"""A group of commands that imports a command only when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Commands = Mapping[str, tuple[str, str, str]]
"""name: (module, attribute, help); with the help here `--help` imports no command."""


class LazyGroup(click.Group):
    """Knows its commands' names and helps, and imports only the module of the called one."""

    table: Commands = {}
    groups: Mapping[str, tuple[str, ...]] = {}
    """Headings of the help, each with its commands; none: all are "Commands"."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.table:
            return None
        module, attribute, _ = self.table[name]
        return getattr(importlib.import_module(module), attribute)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.table:
            import difflib

            if near := difflib.get_close_matches(args[0], self.table, n=1):
                ctx.fail(f"No such command '{args[0]}'. Did you mean '{near[0]}'?")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from edgekv.cli.common.choices import items

        return [*items({name: text for name, (_, _, text) in self.table.items()}, incomplete), *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in (self.groups or {"Commands": tuple(self.table)}).items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{max(map(len, self.table))}}", self.table[name][2]) for name in names])
