"""The examples at the end of each command's help are lines that it takes."""

import click
import pytest
from support.command_lines import calls, commands, parse

from edgekv.cli.common.examples import examples_of
from edgekv.common.errors import ConfigError

COMMANDS = dict(commands())
MOST_LETTERS = 78
"""click's help has room for so many letters in a line."""


pytestmark = pytest.mark.usefixtures("no_variables")


@pytest.mark.parametrize("path", sorted(COMMANDS), ids=lambda path: " ".join(path) or "edgekv")
def test_every_command_has_examples(path):
    """Each command has two to four examples, as the help shows them. One at least is of the command itself, and the command takes all of
    them."""
    lines = examples_of(COMMANDS[path].epilog)
    assert 2 <= len(lines) <= 4, f"`edgekv {' '.join(path)} --help` has {len(lines)} examples"
    shown = COMMANDS[path].get_help(click.Context(COMMANDS[path], info_name="edgekv")).splitlines()
    for line in lines:
        assert len(line) + 4 <= MOST_LETTERS and f"    {line}" in shown
        assert calls(line), f"{line} does not run edgekv"
        for words in calls(line):
            parse(words)
    assert any(tuple(words[: len(path)]) == path for line in lines for words in calls(line))


@pytest.mark.parametrize("line", [
    "edgekv chat --kv-buget 1GiB", "edgekv lab trace", "edgekv bnech kv", "edgekv chat --ctx many", "edgekv chat a.gguf b.gguf", "edgekv serve --parallel 99",
    "edgekv models synth", 'edgekv chat "$(edgekv models pth)"', "true | EDGEKV_KV=off edgekv chat --kv on",
])
def test_a_wrong_example_is_seen(line):
    def refused(words):
        try:
            parse(words)
        except (click.UsageError, ConfigError):
            return True
        return False

    assert any(refused(words) for words in calls(line))
