"""What `--help` looks like: bold headings, one accent colour, up to 100 characters wide; and `--help-all`."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from edgekv.cli.common.examples import HEADING

if TYPE_CHECKING:
    from edgekv.config.setting_table import Setting

WIDEST = 100

_WHOLE = "edgekv.help_all"
_GROUPS = {"Answers": "Conversation", "Prefix cache": "Server", "Context": "Model", "Attention": "Model", "Memory": "Model", "Processor and GPU": "Model"}
"""Groups of `--help-all` that are one in `--help`."""


def _accent(text: str) -> str:
    return text if os.environ.get("NO_COLOR") else click.style(text, fg="cyan")


def _bold(text: str) -> str:
    return text if os.environ.get("NO_COLOR") else click.style(text, bold=True)


class Formatter(click.HelpFormatter):
    """click's, with colours, which click itself takes away where the output is no terminal."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, _bold("Usage: ") if prefix is None else prefix)

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{_bold(heading)}\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(_named(first), second) for first, second in rows], col_max, col_spacing)

    def write_text(self, text: str) -> None:
        super().write_text(text.replace(HEADING, _bold(HEADING), 1))


def _named(first: str) -> str:
    """The first column of a list, with its names in colour: a command, or an option's without its value."""
    return re.sub(r"(?<![\w-])--?[\w-]+", lambda found: _accent(found[0]), first) if first.startswith("-") else _accent(first)


class Group(click.Group):
    """A group whose help has the first sentence of each command, whole: click cuts it at the end of a line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=1000)) for name in self.list_commands(ctx)])


class SettingsCommand(click.Command):
    """A command whose `--help` has a line for each main setting, and `--help-all` everything."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        shows_all = click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help="Every option, with its variable.")
        return [*super().get_params(ctx), shows_all]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        text = inspect.cleandoc(self.help or "")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text if _WHOLE in ctx.meta else text.partition("\n\n")[0])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in filter(lambda one: isinstance(one, click.Option), self.get_params(ctx)):
            setting: Setting | None = getattr(parameter, "setting", None)
            if _WHOLE in ctx.meta or setting is None:
                record, group = parameter.get_help_record(ctx), setting.group if setting is not None else "Others"
            else:
                record, group = _line(setting), _GROUPS.get(setting.group, setting.group)
            if record is not None:
                groups.setdefault(group, []).append(record)
        for title, records in groups.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _line(setting: Setting) -> tuple[str, str] | None:
    """An option's line in `--help`; None: it has none."""
    if not setting.brief:
        return None
    from edgekv.config.setting_table import Number

    names, default = ", ".join([*setting.short, f"--{setting.name}"]), setting.default_text
    if setting.kind is bool:
        return names, setting.brief
    of_words = re.findall("[A-Z][a-z]*", setting.kind.__name__)[-1].upper() if setting.words else "NAME"  # KvMode: MODE
    unit = setting.unit or ("N" if isinstance(setting.kind, Number) else of_words)
    return f"{names} {unit}", setting.brief + (f" [{default}]" if default and len(default) < 10 else "")


def _show_all(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_WHOLE] = True
        click.echo(ctx.get_help())
        ctx.exit()
