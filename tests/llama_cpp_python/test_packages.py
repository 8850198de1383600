"""Packages that make a llama_cpp.Llama themselves run on ours: all layers are served, and they answer. `python tests/llama_cpp_python --packages`
installs them one after the other; here those that are not installed are skipped."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llama_cpp_python.packages import PACKAGES

RUN = [sys.executable, "-m", "edgekv", "run"]
SERVED = re.compile(r"^<edgekv.Runtime: mode sparse, 30 of 30 layers served", re.M)


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"EDGEKV_KV": "sparse", "PYTHONPATH": str(Path(__file__).parent), "HOME": str(folder), "HF_HUB_OFFLINE": "1"}


@contextmanager
def server(folder: Path, options: str, model: Path) -> Iterator[str]:
    """The URL of a llama_cpp.server whose model is served."""
    command = [*RUN, "-m", "seen", "llama_cpp.server", "--model", str(model), "--n_ctx", "1024", "--port", "0", *options.split()]
    said = folder / "server.log"
    with said.open("w") as log, subprocess.Popen(command, env=environment(folder), stdout=log, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = []
            while not (found := re.search(r"running on (http://\S+)", lines[-1] if lines else "")):
                lines.append(process.stderr.readline())
                assert lines[-1], "".join(lines)
            assert SERVED.search("".join(lines)), lines
            yield found[1]
        finally:
            process.terminate()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_answers_from_ours(name, default_model, tmp_path):
    package = PACKAGES[name]
    try:
        there = importlib.util.find_spec(package.module) is not None
    except ModuleNotFoundError:  # of a package around it
        there = False
    if not there:
        pytest.skip(f"{name} is not installed")

    def answered(program: str, runner: list[str]) -> subprocess.CompletedProcess:
        (tmp_path / "program.py").write_text(program.replace("MODEL", str(default_model)))
        done = subprocess.run([*runner, "program.py"], env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.strip(), done.stderr
        return done

    if package.server is None:
        assert SERVED.search(answered(f"import seen\n{package.program}", RUN).stderr)
    else:
        with server(tmp_path, package.server, default_model) as url:
            answered(package.program.replace("URL", url), [sys.executable])
