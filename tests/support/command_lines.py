"""Command lines as documents show them: the calls of `edgekv` in a line of a shell, and whether the program takes their words."""

import shlex
from collections.abc import Iterator, Sequence

import click

from edgekv.cli.main import cli

_SIGNS = set("();<>|&")


def calls(line: str) -> list[list[str]]:
    """The words behind each `edgekv` that the line runs, also in pipes, behind variables and in $(...)."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = []
    words: list[str] = []
    try:
        read = list(lexer)
    except ValueError:  # prose with an apostrophe
        return []
    for word in [*read, ";"]:
        if set(word) <= _SIGNS:
            while words and words[0].partition("=")[1] and words[0].partition("=")[0].isupper():
                words.pop(0)
            if words[:1] == ["edgekv"] and words[1:]:
                found.append(words[1:])
            words = []
            continue
        words.append(word)
        if "$(" in word:
            found += calls(word.partition("$(")[2].rpartition(")")[0])
    return found


def parse(words: Sequence[str]) -> click.Context:
    """The parsed command, which is not run. Raises UsageError, or MissingParameter where something is left out."""
    left = list(words)
    command: click.Group = cli
    context = click.Context(cli, info_name="edgekv")
    while True:
        if not left:
            raise click.MissingParameter(param_hint="COMMAND", param_type="argument")
        name = left.pop(0)
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"there is no command {name}")
        if not isinstance(found, click.Group) or found.invoke_without_command and (not left or left[0].startswith("-")):
            return found.make_context(name, left, parent=context)
        command, context = found, click.Context(found, context, name)


def commands(command: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with its words, e.g. ("bench", "serve"); groups too, and the root, which has none."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*path, name))
