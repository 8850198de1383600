"""Standard streams that are closed, full or silent."""

import os
import subprocess
from collections.abc import Callable

import pytest
from support.paper import PaperServer, says
from support.program import EDGEKV

from edgekv.cli.chat.piped import read_piped
from edgekv.common.errors import EXIT_OK, EXIT_RUNTIME, EXIT_USAGE


@pytest.fixture
def shell(environment, tmp_path, paper) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a line of sh in which "$@" is the program; the chats of it talk to the server made of paper."""
    def run(line: str) -> subprocess.CompletedProcess[str]:
        paper.script = [says("Hello ", "there")]
        return subprocess.run(["sh", "-c", line, "sh", *EDGEKV], env={**environment, "EDGEKV_URL": paper.url}, cwd=tmp_path, text=True,
                              capture_output=True, timeout=120, check=False)

    return run


@pytest.mark.parametrize(("line", "code", "out", "sentence"), [
    ('"$@" chat -p hi <&-', EXIT_OK, "Hello there\n", ""),
    ('"$@" chat -p hi <&- 2>&-', EXIT_OK, "Hello there\n", ""),
    ('"$@" chat <&-', EXIT_USAGE, "", "the prompt is empty; give some text with --prompt or on standard input"),
    ('"$@" chat -p hi 0>/dev/null', EXIT_RUNTIME, "", "edgekv: standard input cannot be read: Bad file descriptor\n"),
    ('"$@" chat -p hi </dev/null >&-', EXIT_RUNTIME, "", "edgekv: standard output cannot be written: Bad file descriptor; what was not written is lost\n"),
    ('"$@" chat -p hi </dev/null >/dev/full', EXIT_RUNTIME, "",
     "edgekv: standard output cannot be written: No space left on device; what was not written is lost\n"),
    ('ulimit -f 0; "$@" chat -p hi </dev/null >out', EXIT_RUNTIME, "", "edgekv: standard output cannot be written: File too large; what was not"),
    ('ulimit -f 0; PYTHONUNBUFFERED=1 "$@" chat -p hi </dev/null >out', EXIT_RUNTIME, "", "edgekv: standard output cannot be written: File too large;"),
    ('"$@" chat -p hi <&- >&- 2>&-', EXIT_RUNTIME, "", ""),
    ('PYTHONUNBUFFERED=1 "$@" models shapes >/dev/full', EXIT_RUNTIME, "", "edgekv: standard output cannot be written: No space left on device\n"),
    ('PYTHONUNBUFFERED= "$@" models shapes >/dev/full', EXIT_RUNTIME, "", "edgekv: standard output cannot be written: No space left on device\n"),
    ('"$@" models shapes >&-', EXIT_RUNTIME, "", "edgekv: standard output cannot be written: Bad file descriptor\n"),
])
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_closed_and_full(shell, paper, line, code, out, sentence):
    """One sentence, the exit code, and no model is asked where its answer could not go."""
    result = shell(line)
    assert (result.returncode, result.stdout) == (code, out) and sentence in result.stderr, result.stderr
    assert result.stderr.count("\n") <= (4 if code == EXIT_USAGE else 1) and "Traceback" not in result.stderr
    assert len(paper.requests) == (1 if code == EXIT_OK or "ulimit" in line else 0)


def test_a_silent_input_is_waited_for_with_a_word():
    reading, writing = os.pipe()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        os.write(writing, b"late")
        os.close(writing)

    with open(reading, "rb") as stream:
        assert read_piped(stream, say, silent_s=0) == b"late"
    assert len(said) == 1 and "waiting for the end of standard input" in said[0]


def test_an_input_that_comes_at_once_needs_no_word(tmp_path):
    for text in (b"", b"x" * 200_000):
        (tmp_path / "text").write_bytes(text)
        with (tmp_path / "text").open("rb") as stream:
            assert read_piped(stream, pytest.fail, silent_s=0) == text


def test_the_program_says_what_it_waits_for(paper: PaperServer, environment, tmp_path):
    paper.script = [says("Hello")]
    with subprocess.Popen([*EDGEKV, "chat", "--url", paper.url, "-p", "hi"], env=environment, cwd=tmp_path, text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stderr.readline().startswith("waiting for the end of standard input")
        out, err = program.communicate("more")
    assert (program.returncode, out, err) == (EXIT_OK, "Hello\n", "") and paper.requests[0]["messages"][0]["content"] == "hi\n\nmore"
