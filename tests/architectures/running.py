"""Runs measuring processes over all architectures, and starts another where a model ended one."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from support.arithmetic import SINGLE

from .making import Maker, compile_maker

MEASURING = Path(__file__).with_name("measuring.py")
SECONDS = 240.0
"""A model that takes longer hangs."""
N_AT_ONCE = 2
"""Processes: the cores of the machine that the tests are for."""

Found = dict
"""measuring.Found, as JSON has it; with `unmade` alone where the pinned source makes no model."""


def run_all(only: list[str] | None = None) -> Iterator[Found]:
    """What was found of each architecture that the pinned source names. only: these. Raises NotMadeError where nothing can be compiled."""
    with tempfile.TemporaryDirectory() as folder:
        maker = compile_maker(Path(folder))
        architectures = {name: made for name, made in maker.architectures().items() if only is None or name in only}
        yield from run(maker, [name for name, made in architectures.items() if made], Path(folder))
        yield from ({"architecture": name, "unmade": True} for name, made in architectures.items() if not made)


def run(maker: Maker, names: list[str], folder: Path) -> Iterator[Found]:
    """In the order of `names`."""
    idle: SimpleQueue[Measuring] = SimpleQueue()
    with ExitStack() as stack, ThreadPoolExecutor(N_AT_ONCE) as pool:
        for i in range(N_AT_ONCE):
            idle.put(stack.enter_context(Measuring(maker, folder / f"{i}")))

        def found(name: str) -> Found:
            measuring = idle.get()
            try:
                return measuring.found(name)
            finally:
                idle.put(measuring)

        yield from pool.map(found, names)


class Measuring:
    """A process that measures in a new folder of its own."""

    def __init__(self, maker: Maker, folder: Path) -> None:
        self._maker, self._folder = maker, folder
        self._process: subprocess.Popen | None = None
        folder.mkdir()

    def found(self, name: str) -> Found:
        path = self._folder / f"{name}.gguf"
        self._maker.write(name, path)
        process = self._process = self._process or _start(self._folder)
        found = _ask(process, [name, str(path)])
        path.unlink()
        if found is None:
            process.kill()
            found = {"architecture": name, "crashed": f"exit status {process.wait()}: {_last_line(self._folder)}"}
            self._process = None
        return found

    def __enter__(self) -> "Measuring":
        return self

    def __exit__(self, *raised: object) -> None:
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()


def _start(folder: Path) -> subprocess.Popen:
    """Without kernels whose prompts round to bf16, unless EDGEKV_ISA asks for them: random weights make much of that."""
    with (folder / "stderr").open("w") as errors:
        return subprocess.Popen([sys.executable, str(MEASURING)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder,
                                env={"EDGEKV_ISA": SINGLE[-1], **os.environ, "GGML_NO_BACKTRACE": "1"})


def _ask(process: subprocess.Popen, model: list[str]) -> Found | None:
    """None: the process ended, or hangs."""
    timer = threading.Timer(SECONDS, process.kill)
    timer.start()
    try:
        process.stdin.write(json.dumps(model) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    finally:
        timer.cancel()
    return json.loads(line) if line else None


def _last_line(folder: Path) -> str:
    lines = [line for line in (folder / "stderr").read_text(errors="replace").splitlines() if line.strip()]
    asserted = [line for line in lines if "GGML_ASSERT" in line or "Error" in line]
    return (asserted or lines or ["it said nothing"])[-1].strip()
