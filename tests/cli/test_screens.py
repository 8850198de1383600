"""What terminals of 80, 110 and 200 columns show of helps and errors: nothing is cut, and lines break between words."""

import pexpect
import pytest
from click.testing import CliRunner
from support.command_lines import commands
from support.serve_process import EDGEKV

from edgekv.cli.main import cli


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
