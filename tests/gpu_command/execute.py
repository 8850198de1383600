"""Commands with a time limit and a log: a limit ends the command and everything it started."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Done:
    """`code` is None where the time was over."""

    code: int | None
    seconds: float
    tail: str

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def last_line(self) -> str:
        return next((line.strip() for line in reversed(self.tail.splitlines()) if line.strip() and not line.startswith("$ ")), "")


def execute(
    command: Sequence[str | Path], log: Path, seconds: float, env: Mapping[str, str] | None = None, cwd: Path | None = None,
    echo: Callable[[str], None] | None = None, echo_every: float = 10.0,
) -> Done:
    """Run `command` and append its output to `log`. `echo` gets a line of it every so many seconds. `tail` is the last 6,000 characters."""
    began = time.monotonic()
    with log.open("ab") as file:
        start = file.tell()
        file.write(f"$ {' '.join(map(str, command))}\n".encode())
        file.flush()
        try:
            process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                env=dict(env) if env is not None else None, cwd=cwd, start_new_session=True)
        except OSError as error:
            return Done(127, 0.0, f"{command[0]} cannot be started: {error}")
        over = threading.Event()
        if echo is not None:
            threading.Thread(target=_echo, args=(log, start, echo, echo_every, over), daemon=True).start()
        try:
            code: int | None = process.wait(max(0.1, seconds))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            over.set()
            _end(process)
    return Done(code, time.monotonic() - began, _tail(log, start, 6000))


def _end(process: subprocess.Popen) -> None:
    """End the process and its group, whatever is left of them."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    process.poll()


def _echo(log: Path, start: int, echo: Callable[[str], None], every: float, over: threading.Event) -> None:
    shown = ""
    while not over.wait(every):
        lines = [line.strip() for line in _tail(log, start, 2000).splitlines() if line.strip()]
        of_build = [line for line in lines if line.startswith("[") and "/" in line.partition("]")[0]]  # not a compiler's warnings
        last = (of_build or lines or [shown])[-1]
        if last != shown:
            shown = last
            echo(shown[:160])


def _tail(log: Path, start: int, n: int) -> str:
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - n))
        return file.read().decode(errors="replace")
