"""What tests of the command line start: a server made of paper, the program, a chat in a pseudo-terminal."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.paper import PaperServer
from support.program import EDGEKV, Screen

from edgekv.cli.chat.client import ChatClient
from edgekv.cli.chat.session import Conversation


@pytest.fixture
def paper() -> Iterator[PaperServer]:
    server = PaperServer()
    yield server
    server.close()


@pytest.fixture
def conversation(paper: PaperServer) -> Conversation:
    client = ChatClient(paper.url, "key", {"temperature": 0.0})
    return Conversation(client, system="be nice")


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """No option comes from the environment."""
    for name in list(os.environ):
        if name.startswith("EDGEKV_"):
            monkeypatch.delenv(name)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("EDGEKV_", "NO_COLOR"))}
    # one thread, so that nothing printed depends on the machine's cores
    return clean | {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path), "TERM": "xterm-256color", "EDGEKV_THREADS": "1"}


@pytest.fixture
def edgekv(environment: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*EDGEKV, *arguments], input=stdin, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False,
                              env={**environment, **variables})

    return run


@pytest.fixture
def terminal(environment) -> Iterator[Callable[..., Screen]]:
    """`terminal(*arguments, **variables)`: a chat that waits for its first line."""
    opened: list[Screen] = []

    def start(*arguments: str, **variables: str) -> Screen:
        opened.append(Screen({**environment, **variables}, *arguments))
        opened[-1].greeting = opened[-1].until("Ctrl-D leaves")
        return opened[-1]

    yield start
    for one in opened:
        one.child.close(force=True)


@pytest.fixture
def screen(terminal, default_model) -> Callable[..., Screen]:
    """The same with the default model, where there is one."""
    return terminal
