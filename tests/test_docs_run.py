"""What a newcomer copies out of the READMEs runs as it stands there, on a small model, and what it prints is not lost in a log.

tests/test_clone.py runs README's Python lines, tests/server/test_conforms_chat.py the lines with curl."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.program import Screen
from support.serve_process import EDGEKV, Served, environment, serving
from support.stub import write_stub

ROOT = Path(__file__).resolve().parent.parent
SHELL_LINES, PYTHON_LINES = ("README.md", "cli/README.md", "models/README.md"), ("edgekv/README.md", "cli/README.md")
ELSEWHERE = {"hf:": "a network", "--gpu": "a card", "3f2a": "an ID of the reader's", "synth": "gigabytes", "--mmproj": "a projector", "URL": "a clone",
             "warm": "a server at that port", "curl": "tests/server/test_conforms_chat.py", "cuda": "a toolkit", "pip ": ".ci/run", "redis": "two servers",
             'chat "$(': "a terminal inside a shell"}
"""Lines with these words need what a test does not have, or are run elsewhere."""


def blocks(name: str, kind: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return [block for name, block in re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.M | re.S) if name == kind]


def lines(block: str) -> list[str]:
    return [line for line in block.replace("\\\n", " ").splitlines() if "edgekv " in line and not any(word in line for word in ELSEWHERE)]


SHELL = [pytest.param(lines(block), id=f"{name}-{number}") for name in SHELL_LINES for number, block in enumerate(blocks(name, "")) if lines(block)]
PYTHON = [pytest.param(block, id=f"{name}-{number}") for name in PYTHON_LINES for number, block in enumerate(blocks(name, "python"))]


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """A reader's home folder: a model that says a word, a text, a program that the shell finds."""
    desk = tmp_path_factory.mktemp("desk")
    write_stub(desk / "MODEL.gguf", "hot is the opposite of cold")
    (desk / "model.gguf").symlink_to("MODEL.gguf")
    (desk / "manual.txt").write_text("Press the red button to stop the machine. " * 40)
    (desk / "keys").write_text("secret\n")
    subprocess.run(["git", "init", "-q", desk], check=True)
    program = desk / "bin" / "edgekv"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(EDGEKV)} "$@"\n')
    program.chmod(0o755)
    return desk


@pytest.fixture(scope="module")
def server(desk) -> Iterator[Served]:
    with serving(desk, "MODEL.gguf", "--ctx", "2048", "--log-file", "server.log") as served:
        yield served


def of_reader(desk: Path) -> dict[str, str]:
    return environment(desk, PATH=f"{desk / 'bin'}:{os.environ['PATH']}", EDGEKV_MODEL=str(desk / "MODEL.gguf"),
                       EDGEKV_MAX_TOKENS="32", TERM="xterm-256color")  # the small real model may go on for ever


@pytest.mark.parametrize("shown", SHELL)
def test_lines_of_a_shell(shown, desk, server, default_model, monkeypatch):
    monkeypatch.chdir(desk)
    for line in (one.replace("http://127.0.0.1:8080", server.url) for one in shown):
        name, *words = shlex.split(line, comments=True)
        if name == "edgekv" and words[0] == "serve":
            with serving(desk, *[word for word in words[1:] if word not in ("--port", "8080")], EDGEKV_MODEL=str(desk / "MODEL.gguf")) as served:
                assert len(served.lines) < 10, f"{line} begins with\n{''.join(served.lines)}"
                served.process.send_signal(signal.SIGTERM)
                assert served.process.wait(timeout=60) == 0, line
        elif name == "edgekv" and words[0] == "chat" and "-p" not in words:
            chat = Screen(of_reader(desk), *words[1:])
            chat.until("Ctrl-D leaves")
            chat.say("Hello!", "t/s.*Send a message")
            chat.leave()
        else:
            done = subprocess.run(["bash", "-c", line], env=of_reader(desk), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            assert len(done.stderr.splitlines()) < 10, f"{line} drowns its answer:\n{done.stderr}"


@pytest.mark.parametrize("block", PYTHON)
def test_lines_of_python(block, desk, server):
    for asked in re.findall(r"create_\w+\((.*)", block):
        assert "max_tokens=" in asked, f"an answer without an end: {asked}"
    program = block.replace("http://127.0.0.1:8080", server.url).replace("/mnt/nvme", str(desk))
    done = subprocess.run([sys.executable, "-c", program], cwd=desk, env=of_reader(desk), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout and len(done.stderr.splitlines()) < 5, f"the answer drowns:\n{done.stderr[-3000:]}"
    if shared := re.findall(r"^(\d+) of (\d+) tokens of the prompt were read before$", done.stdout, re.M):
        first, second = (int(found) / int(asked) for found, asked in shared)
        assert first < 0.5 < second, "the second question finds the document"
