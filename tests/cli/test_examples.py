"""Helps on terminals of 80, 110 and 200 columns, whole and with examples that the commands take; and errors, whose lines break between words."""

import click
import pexpect
import pytest
from click.testing import CliRunner
from support.command_lines import calls, commands, parse
from support.serve_process import EDGEKV

from edgekv.cli.common.examples import examples_of
from edgekv.cli.main import cli
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


# ---- screens ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 110, 200])
def test_helps_fit_and_are_whole(width):
    for words, _ in commands():
        said = CliRunner().invoke(cli, [*words, "--help"], terminal_width=width).output
        assert not [line for line in said.splitlines() if len(line) > width or line.endswith("...") and not line.startswith("Usage")], words


def test_a_group_alone_shows_its_help(edgekv):
    alone, asked = edgekv("models"), edgekv("models", "--help")
    assert alone.stderr == asked.stdout and "Error" not in asked.stdout


@pytest.mark.parametrize("words", [("plan", "--ctx", "a hundred thousand"), ("cache", "show", "3f2a", "--cache-dir", ".")],
                         ids=lambda words: words[0])
def test_errors_break_between_words(words, tmp_path, environment, edgekv):
    whole = edgekv(*words)
    child = pexpect.spawn(EDGEKV[0], [*EDGEKV[1:], *words], encoding="utf-8", env=environment | {"NO_COLOR": "1"}, cwd=str(tmp_path),
                          dimensions=(40, 80), timeout=60)
    child.expect(pexpect.EOF)
    assert child.before.split() == whole.stderr.split() and max(map(len, whole.stderr.splitlines())) > 80
    assert all(len(line) <= 80 for line in child.before.splitlines())
