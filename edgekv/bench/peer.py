"""Runs another llama-bench on the same test and file."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from edgekv.bench.request import BenchTest
from edgekv.common.enums import CacheType
from edgekv.common.errors import ConfigError
from edgekv.measure import interrupts

_LOOKS_EVERY = 0.5  # seconds

_SHOWN = 160
"""Characters shown of its answer."""

NEEDED = ("n_prompt", "n_gen", "n_depth", "avg_ns", "avg_ts", "samples_ns", "samples_ts")
"""The fields of its answer that a row needs."""


class PeerError(Exception):
    """The peer did not answer; the message goes into the row."""


class PeerSetting(Struct, frozen=True):
    """The peer's command line without the test."""

    model: Path
    n_batch: int
    n_ubatch: int
    n_threads: int
    type_k: CacheType
    type_v: CacheType
    n_rounds: int

    def arguments(self, test: BenchTest) -> list[str]:
        both = test.n_prompt and test.n_gen
        flash = "0,1" if self.type_v is CacheType.F16 else "1"
        named = {"-m": self.model, "-p": 0 if both else test.n_prompt, "-n": 0 if both else test.n_gen, "-d": test.depth, "-b": self.n_batch,
                 "-ub": self.n_ubatch, "-t": self.n_threads, "-ctk": self.type_k.value, "-ctv": self.type_v.value, "-r": self.n_rounds,
                 "-fa": flash, "-o": "json"}
        if both:
            named["-pg"] = f"{test.n_prompt},{test.n_gen}"
        return [str(word) for pair in named.items() for word in pair]


def check(peer: Path) -> None:
    """Raise ConfigError if the peer cannot be started."""
    if not peer.is_file():
        raise ConfigError(f"there is no file {peer}; --peer names the program llama-bench of another llama.cpp")
    if not os.access(peer, os.X_OK):
        raise ConfigError(f"{peer} is not an executable file; --peer names the program llama-bench of another llama.cpp")


def ask(peer: Path, setting: PeerSetting, test: BenchTest) -> list[dict[str, Any]]:
    """The peer's rows, one for each of its attention kernels. Raises PeerError."""
    try:
        code, said, errors = _run([str(peer.resolve()), *setting.arguments(test)])
    except OSError as error:
        raise PeerError(f"{peer.name} cannot be started: {error.strerror or error}") from error
    if code:
        raise PeerError(f"{peer.name} failed with exit code {code}: {_said(errors, said)}")
    try:
        rows = json.loads(said)
    except ValueError:
        raise PeerError(f"{peer.name} printed no JSON, so it is not llama-bench: {_said(said, errors)}") from None
    if not isinstance(rows, list) or not rows or not all(_whole(row) for row in rows):
        raise PeerError(f"{peer.name} printed JSON that is not llama-bench's: {_said(said)}")
    return rows


def _run(command: list[str]) -> tuple[int, str, str]:
    """Run a command; return exit code, standard output, standard error. Ctrl-C ends the command."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        try:
            while True:
                try:
                    said, errors = process.communicate(timeout=_LOOKS_EVERY)
                    interrupts.check()  # the command may have received the signal too
                    return process.returncode, said, errors
                except subprocess.TimeoutExpired:
                    interrupts.check()
        except BaseException:
            process.kill()
            raise


def _whole(row: Any) -> bool:
    return isinstance(row, dict) and all(name in row for name in NEEDED) and _numbers(row["samples_ns"]) and _numbers(row["samples_ts"])


def _numbers(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(isinstance(value, (int, float)) for value in values)


def _said(*texts: str) -> str:
    """The last line of the first text that has one, shortened."""
    lines: Sequence[str] = next((text.strip().splitlines() for text in texts if text.strip()), ["it said nothing"])
    return lines[-1][:_SHOWN]
