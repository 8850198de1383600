"""`edgekv chat -p`: one answer without a terminal, its settings, mistakes, and standard streams that are closed, full or silent."""

import os
import re
import subprocess
from collections.abc import Callable

import pytest
from support.paper import PaperServer, says
from support.program import EDGEKV
from support.stub import THINKING, cut, write_stub

from edgekv.cli.chat.piped import read_piped
from edgekv.common.errors import EXIT_DOES_NOT_FIT, EXIT_MODEL, EXIT_OK, EXIT_RUNTIME, EXIT_USAGE

SHORT = ("--temp", "0", "-n", "8", "--ctx", "512")


def test_one_shot(edgekv, default_model):
    whole = edgekv("chat", "-p", "Say hello.", *SHORT)
    assert whole.returncode == EXIT_OK and whole.stdout.strip() and whole.stdout.endswith("\n")
    assert whole.stderr == "", "nothing beside the answer where nobody watches"
    assert "\x1b" not in whole.stdout
    piped = edgekv("chat", str(default_model), *SHORT, stdin="Say hello.")
    assert piped.stdout == whole.stdout
    portable = edgekv("chat", "-p", "Say hello.", "--footer", *SHORT, EDGEKV_ISA="portable", EDGEKV_ATTENTION_DEVICE="cpu")
    assert portable.returncode == EXIT_OK and "KV exact" in portable.stderr, "sketches are slow to scan there"
    both = edgekv("chat", "-p", "Say", "--footer", *SHORT, stdin="hello.", EDGEKV_CACHE_TYPE_K="q8_0", EDGEKV_KV="off")
    assert both.returncode == EXIT_OK and "KV off" in both.stderr and "context" not in both.stdout and "\x1b" not in both.stderr


def test_every_setting_reaches_the_sampler(edgekv, default_model):
    first, second = (edgekv("chat", "-p", "Tell me a story.", "-n", "12", "--ctx", "512", "--seed", seed).stdout for seed in "12")
    again = edgekv("chat", "-n", "12", EDGEKV_PROMPT="Tell me a story.", EDGEKV_CTX="512", EDGEKV_SEED="1",
                   EDGEKV_MODEL=str(default_model)).stdout
    assert first == again != second


@pytest.mark.parametrize(("arguments", "stdin", "code", "sentence"), [
    (["chat"], "  \n", EXIT_USAGE, "prompt is empty"),
    (["chat", "--kv", "fast", "-p", "x"], "", EXIT_USAGE, "'exact', 'sparse', 'evict', 'off'"),
    (["chat", "--kv", "sparse", "--sketch", "none", "--attend", "10%", "-p", "x"], "", EXIT_USAGE,
     "--sketch is gone: mode sparse reads what its sketches choose, and --sample-budget says how much"),
    (["chat", "--kv", "sparse", "--sample-budget", "0.5", "-p", "x"], "", EXIT_USAGE, r"it must be a number from 1 to 1e\+09, such as 2000"),
    (["chat", "--kv", "sparse", "--policy", "ema+luck", "-p", "x"], "", EXIT_USAGE, "no policy 'luck'; choose one of: ema"),
    (["chat", "--kv", "sparse", "--kv-dir", ".", "--kv-budget", "100", "-p", "x"], "", EXIT_USAGE, "one page of this model takes 4,096"),
    (["chat", "--kv", "sparse", "--prefetch", "x", "-p", "x"], "", EXIT_USAGE, "no prefetch 'x'"),
    (["chat", "--page-size", "17", "-p", "x"], "", EXIT_USAGE, "a multiple of 16"),
    (["chat", "none.gguf", "-p", "x"], "", EXIT_MODEL, "there is no file none.gguf"),
    (["chat", "-p", "x", "--kv", "evict", "--evict-to", "100000000", "--ctx", "100000k"], "", EXIT_DOES_NOT_FIT, "use --ctx 8192 or less"),
    (["chat", "-p", "x", "--ctx", "2147483647"], "", EXIT_USAGE, "a number of tokens from 1 to 1,073,741,824"),
    (["chat", "--ctx", "256"], "word " * 500, EXIT_RUNTIME, r"tokens and the context holds 256: .* --ctx 1024 or more"),
    (["nonsense"], "", EXIT_USAGE, "No such command"),
    (["chta", "-p", "x"], "", EXIT_USAGE, "No such command 'chta'. Did you mean 'chat'?"),
    (["none.GGUF", "-p", "x"], "", EXIT_MODEL, "there is no file none.GGUF"),
    (["chat", "--ctx", "k", "-p", "x"], "", EXIT_USAGE, "such as 4096 or 4k, or auto"),
])
def test_mistakes_get_a_sentence(edgekv, default_model, arguments, stdin, code, sentence):
    result = edgekv(*arguments, stdin=stdin)
    assert result.returncode == code and re.search(sentence, result.stderr), result.stderr
    assert not result.stdout and "Traceback" not in result.stderr


def test_thinking_alone_is_told(edgekv, tmp_path):
    model = write_stub(tmp_path / "stub.gguf", cut("thinking without an end"), THINKING)
    result = edgekv("chat", str(model), "-p", "Say it.", "--footer", "--temp", "0", "--ctx", "512")
    assert result.returncode == EXIT_OK and not result.stdout
    *_, told, footer = result.stderr.splitlines()  # before it, that other programs are busy
    assert told == "only thinking came, and no answer: the text ended before the thinking did" and footer.endswith(" · only thinking")


def test_a_model_without_a_chat_template_is_told(edgekv, tmp_path):
    model = write_stub(tmp_path / "stub.gguf", cut("and so on"), None)
    result = edgekv("chat", str(model), "-p", "It begins", "--footer", "--temp", "0", "--ctx", "512")
    assert result.returncode == EXIT_OK and result.stdout == "and so on\n"
    assert result.stderr.startswith("this model has no chat template: it goes on with a text rather than answer")


def test_version(edgekv):
    assert re.fullmatch(r"edgekv \d+\.\d+.*\n", edgekv("--version").stdout)


def test_a_reader_that_leaves(environment, default_model):
    command = [*EDGEKV, "chat", "-p", "Tell me a story.", "--temp", "0", "-n", "40", "--ctx", "256"]
    result = subprocess.run(
        ["bash", "-c", '"$0" "$@" | head -c 1; exit ${PIPESTATUS[0]}', *command],
        env=environment, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=120, check=False,
    )
    assert result.returncode == EXIT_RUNTIME and "Traceback" not in result.stderr and "Exception" not in result.stderr


# ---- streams -----------------------------------------------------------------------------------------------------------------------


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
