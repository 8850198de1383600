"""`edgekv serve` as a process of its own, which tests ask as clients do."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.clients import Reply, send

EDGEKV = [sys.executable, "-c", "from edgekv.cli.main import main; main()"]


@dataclass
class Served:
    """A running server. `lines` are its words up to the moment when it was ready."""

    process: subprocess.Popen
    url: str
    key: str | None
    lines: list[str]

    def ask(self, path: str, body: Any = None, method: str | None = None, key: str | None = None, **headers: str) -> Reply:
        if key or self.key:
            headers["Authorization"] = f"Bearer {key or self.key}"
        return send(self.url, path, body, method, **headers)


def environment(home: Path, **variables: str) -> dict[str, str]:
    """The environment of a user without variables and files of options. One thread: several wait for each other on a busy machine."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("EDGEKV_", "XDG_"))}
    return clean | {"HOME": str(home), "EDGEKV_THREADS": "1"} | variables


@contextmanager
def serving(home: Path, *arguments: str, key: str | None = None, **variables: str) -> Iterator[Served]:
    """`edgekv serve` on a free port until the block ends."""
    process = subprocess.Popen([*EDGEKV, "serve", "--port", "0", *arguments], env=environment(home, **variables), cwd=home,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        lines: list[str] = []
        while not (lines and lines[-1].endswith("to stop\n")):
            lines.append(process.stderr.readline())
            assert lines[-1], f"no server: {''.join(lines)}"
        yield Served(process, re.search(r" API +(http://\S+)/v1", "".join(lines))[1], key, lines)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.fixture(scope="session")
def endpoint(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The default model in two slots, with a key and a template that knows tools: one server for all tests that only ask."""
    home = tmp_path_factory.mktemp("served")
    (home / "keys").write_text("# ours\nsecret\nother\n")
    with serving(home, "--parallel", "2", "--ctx", "1024", "--alias", "smol", "--api-key-file", "keys", "--",
                 "--chat-template-file", str(Path(__file__).with_name("tools.jinja")), key="secret") as served:
        yield served
