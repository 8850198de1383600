"""Programs that only native tests need, built and run beside the other tests, which leave a core idle."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, Semaphore

import pytest

N_CORES = 2

_START = "import os, sys; os.setpgrp(); os.nice(19); os.execvp(sys.argv[1], sys.argv[1:])"
"""A group of processes, not a session: Linux may give each session the same share of the processor, whatever the priorities in it."""


@dataclass(frozen=True)
class Ended:
    """The end of commands that ran one after another, as far as the first that failed."""

    returncode: int
    said: str
    """Standard output and error, as they came."""


class Beside:
    """Jobs by key, at the lowest priority, in the order in which they are added: one at a time, and as many as there are cores once a test
    waits for one. Leaving it ends what runs and starts no more. `alone`: no other tests are selected."""

    def __init__(self, alone: bool) -> None:
        self.n_compilers = N_CORES if alone else 1
        """What a build may run at once."""
        self._pool = ThreadPoolExecutor(N_CORES)
        self._jobs: dict[tuple[str, ...], Future[Ended]] = {}
        self._free = Semaphore(1)
        self._waits = False
        self._last_build: tuple[str, ...] | None = None
        self._running: set[subprocess.Popen] = set()
        self._lock = Lock()
        self._left = False

    def add(self, key: tuple[str, ...], *commands: Sequence[str | Path], after: tuple[str, ...] | None = None, **environment: str) -> None:
        """A job: `commands` one after another, behind the job `after`, which was added before, however that ends."""
        self._jobs[key] = self._pool.submit(self._run, commands, None if after is None else self._jobs[after], environment)

    def build(self, key: tuple[str, ...], *commands: Sequence[str]) -> None:
        """A job that compiles. It waits for the one before it: where there is a compiler cache, that has what both need."""
        self.add(key, *commands, after=self._last_build)
        self._last_build = key

    def end(self, key: tuple[str, ...]) -> Ended:
        """Waits for a job."""
        if not self._waits:
            self._waits = True
            self._free.release(N_CORES - 1)
        return self._jobs[key].result()

    def check(self, *keys: tuple[str, ...]) -> None:
        """Waits for jobs, and fails a test with what the first of them said that ended badly."""
        for key in keys:
            done = self.end(key)
            assert done.returncode == 0, f"{' '.join(key)}:\n{done.said[-8000:]}"

    def __enter__(self) -> "Beside":
        return self

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._left = True
            for process in self._running:
                with suppress(ProcessLookupError):  # it ended, or has just begun and is no group yet
                    os.killpg(process.pid, signal.SIGTERM)  # a build has processes of its own
                process.terminate()
        self._pool.shutdown(cancel_futures=True)

    def _run(self, commands: Sequence[Sequence[str | Path]], after: Future[Ended] | None, environment: dict[str, str]) -> Ended:
        if after is not None:
            after.result()
        said = ""
        with self._free:
            for command in commands:
                ended = self._wait_for([str(part) for part in command], os.environ | environment)
                said += ended.said
                if ended.returncode:
                    return Ended(ended.returncode, said)
        return Ended(0, said)

    def _wait_for(self, command: list[str], environment: dict[str, str]) -> Ended:
        with self._lock:
            if self._left:
                return Ended(1, "the tests ended before this began\n")
            process = subprocess.Popen([sys.executable, "-SEc", _START, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       env=environment)
            self._running.add(process)
        said = process.communicate()[0]
        with self._lock:
            self._running.remove(process)
        return Ended(process.returncode, said)


def parameters(items: Sequence[pytest.Item], *tests: str) -> list[str]:
    """What the selected tests of these names are parametrized with, in order."""
    return list(dict.fromkeys(value for item in items if item.originalname in tests for value in item.callspec.params.values()))
