"""Programs that tests need the ends of, run two at a time: one alone leaves a core idle."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

N_CORES = 2


@dataclass(frozen=True)
class Ended:
    returncode: int
    said: str
    """Standard output and error, as they came."""


class SideBySide:
    """`commands` by key, of which those are started, in order, whose key is a parameter of a selected test with one of the names `tests`.
    Leaving it starts no more of them, and waits for those that run."""

    def __init__(self, request: pytest.FixtureRequest, tests: Sequence[str], commands: Mapping[str, Sequence[str]], **environment: str):
        wanted = [value for item in request.session.items if item.originalname in tests for value in item.callspec.params.values()]
        self._pool = ThreadPoolExecutor(N_CORES)
        self._ends: dict[str, Future[Ended]] = {
            key: self._pool.submit(_run, commands[key], os.environ | environment) for key in dict.fromkeys(wanted) if key in commands}

    def end(self, key: str) -> Ended:
        return self._ends[key].result()

    def __enter__(self) -> "SideBySide":
        return self

    def __exit__(self, *raised: object) -> None:
        self._pool.shutdown(cancel_futures=True)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> Ended:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    return Ended(done.returncode, done.stdout)
