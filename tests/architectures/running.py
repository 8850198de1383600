"""Runs measuring processes over all architectures, and starts another where a model ended one."""

import hashlib
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

from .making import Maker, NotMadeError

MEASURING = Path(__file__).with_name("measuring.py")
ALLOCATING = Path(__file__).with_name("allocating.py")
WINDOW, PATTERN, RECURRENT = "attention.sliding_window", "attention.sliding_window_pattern", "attention.recurrent_layers"
ODD = {
    "as the pinned test makes them": (),
    "no window": (f"{WINDOW}=",), "a window of 100": (f"{WINDOW}=100",),
    "no pattern": (f"{PATTERN}=",), "pattern 0": (f"{PATTERN}=0",), "pattern 3": (f"{PATTERN}=3",), "a list as pattern": (f"{PATTERN}=1,0",),
    "no interval of full attention": ("full_attention_interval=",), "an interval of 1": ("full_attention_interval=1",),
    "a list of recurrent layers": (f"{RECURRENT}=1,0",), "the same, reversed": (f"{RECURRENT}=0,1",),
    "a layer that predicts": ("nextn_predict_layers=1",), "eight layers": ("block_count=8",),
}
"""Keys that are absent, odd, or stand where nobody expects them."""
SECONDS = 240.0
"""A model that takes longer hangs."""
N_AT_ONCE = 2
"""Processes: the cores of the machine that the tests are for."""

Found = dict
"""measuring.Found, as JSON has it; with `unmade` alone where the pinned source makes no model."""


Model = tuple[str, str, tuple[str, ...]]
"""The name of an architecture, what is odd about its keys, and those keys (`Maker.write`)."""


def run_all(maker: Maker, only: list[str] | None = None) -> Iterator[Found]:
    """What was found of each architecture that the pinned source names. only: these."""
    architectures = {name: made for name, made in maker.architectures().items() if only is None or name in only}
    yield from run(maker, [(name, "", ()) for name, made in architectures.items() if made], MEASURING)
    yield from ({"architecture": name, "unmade": True} for name, made in architectures.items() if not made)


def run_allocations(maker: Maker, only: list[str] | None = None) -> Iterator[Found]:
    """What allocating.py found of each architecture with each of ODD."""
    names = [name for name, made in maker.architectures().items() if made and (only is None or name in only)]
    yield from run(maker, [(name, odd, keys) for name in names for odd, keys in ODD.items()], ALLOCATING)


def run(maker: Maker, models: list[Model], program: Path) -> Iterator[Found]:
    """What a program found of each, in their order."""
    idle: SimpleQueue[Measuring] = SimpleQueue()
    seen: set[bytes] = set()
    with ExitStack() as stack, ThreadPoolExecutor(N_AT_ONCE) as pool:
        for _ in range(N_AT_ONCE):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            idle.put(stack.enter_context(Measuring(maker, folder, program, seen)))

        def found(model: Model) -> Found:
            measuring = idle.get()
            try:
                return measuring.found(*model)
            finally:
                idle.put(measuring)

        yield from pool.map(found, models)


class Measuring:
    """A process that measures in an empty folder of its own. seen: digests of the files that were measured."""

    def __init__(self, maker: Maker, folder: Path, program: Path, seen: set[bytes]) -> None:
        self._maker, self._folder, self._program, self._seen = maker, folder, program, seen
        self._process: subprocess.Popen | None = None

    def found(self, name: str, odd: str, keys: tuple[str, ...]) -> Found:
        path = self._folder / f"{name}.gguf"
        try:
            self._maker.write(name, path, keys)
        except NotMadeError:
            if not keys:
                raise
            return {"architecture": name, "odd": odd, "unmade": True}
        if (digest := hashlib.sha256(path.read_bytes()).digest()) in self._seen:  # the architecture knows no such keys
            return {"architecture": name, "odd": odd, "unmade": True}
        self._seen.add(digest)
        process = self._process = self._process or self._start()
        found = _ask(process, [name, str(path)])
        path.unlink()
        if found is None:
            process.kill()
            found = {"architecture": name, "crashed": f"exit status {process.wait()}: {_last_line(self._folder)}"}
            self._process = None
        return found | {"odd": odd}

    def _start(self) -> subprocess.Popen:
        """Without kernels whose prompts round to bf16, unless EDGEKV_ISA asks for them: random weights make much of that."""
        with (self._folder / "stderr").open("w") as errors:
            return subprocess.Popen([sys.executable, str(self._program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                                    cwd=self._folder, env={"EDGEKV_ISA": SINGLE[-1], **os.environ, "GGML_NO_BACKTRACE": "1"})

    def __enter__(self) -> "Measuring":
        return self

    def __exit__(self, *raised: object) -> None:
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()


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
