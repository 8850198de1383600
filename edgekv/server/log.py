"""The log of llama.cpp's server while it runs inside this process, and the meaning of its last words.

The server has one log, which always goes to file descriptor 2. To keep it off the screen, the descriptor points to a file
while the server lives, and Python's `sys.stderr` writes to a copy of the old descriptor.
"""

import os
import re
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import psutil

from edgekv.common.errors import ConfigError, DoesNotFit, EdgeKVError, ModelError

_STDERR = 2
_TAIL_BYTES = 16384
_NAME = "edgekv-server-"
_ORPHAN_S = 24 * 3600
_PREFIX = re.compile(r"^(?:[\d.]+ )?(?P<level>[EWID]) (?P<text>.*)$")
_MEANINGS: list[tuple[type[EdgeKVError], str, str]] = [
    # (error, pattern in the log, sentence for people)
    (ConfigError, r"couldn't bind HTTP server socket|couldn't start HTTP listener", "the port or host cannot be used: {line}"),
    (DoesNotFit, r"failed to allocate|unable to allocate|out of memory|bad_alloc|cudaMalloc failed",
     "the model and its context do not fit in memory; use a smaller --ctx or --cache-type-k q8_0 --cache-type-v q8_0 (or q4_0)"),
    (ModelError, r"unknown model architecture: '([^']*)'", "the model's architecture ({0}) is newer than this EdgeKV"),
    (ModelError, r"unknown pre-tokenizer type: '([^']*)'", "the model's tokenizer ({0}) is newer than this EdgeKV"),
    (ModelError, r"common_chat_templates_init: error: (.*)",
     "the model's chat template does not parse: {0}; `edgekv serve MODEL -- --chat-template NAME` takes another"),
    (ModelError, r"chat template parsing error: (.*)", "the model's chat template cannot be used: {0}"),
    (ModelError, r"failed to load lora adapter '(.*)'", "the LoRA adapter {0} does not go with this model: {first}"),
    (ModelError, r"no valid control vector files passed|control vector n_embd does not match", "a control vector does not go with this model: {first}"),
    (ModelError, r"error: (mismatch between .*mmproj.*)", "the projector does not go with this model: {0}"),
]


class ServerLog:
    """The log of one server. `path` None: a temporary file, which `close(keep=False)` removes; "-": standard error, unchanged."""

    def __init__(self, path: Path | None):
        self._temporary = path is None
        self.path: Path | None = None
        self._saved_fd: int | None = None
        self._saved_stderr: TextIO | None = None
        if path is None:
            _remove_orphans()
            fd, name = tempfile.mkstemp(prefix=f"{_NAME}{os.getpid()}-", suffix=".log")
            os.close(fd)
            self.path = Path(name)
        elif str(path) != "-":
            self.path = path

    def open(self) -> None:
        """Point descriptor 2 to the file. Raises OSError if the file cannot be written."""
        if self.path is None:
            return
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o600)
        sys.stderr.flush()
        self._saved_fd = os.dup(_STDERR)
        os.dup2(fd, _STDERR)
        os.close(fd)
        if _descriptor(sys.stderr) == _STDERR:
            self._saved_stderr = sys.stderr
            sys.stderr = os.fdopen(
                self._saved_fd, "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace", closefd=False
            )

    def note(self, line: str) -> None:
        """Write a line of ours while the log is open."""
        with suppress(OSError):  # on a full disk the server's own lines are lost too
            os.write(_STDERR, f"edgekv: {line}\n".encode())

    def close(self, keep: bool) -> None:
        """Give descriptor 2 and `sys.stderr` back; a temporary log stays only if `keep`."""
        if self._saved_fd is not None:
            sys.stderr.flush()
            if self._saved_stderr is not None:
                sys.stderr = self._saved_stderr
            os.dup2(self._saved_fd, _STDERR)
            os.close(self._saved_fd)
            self._saved_fd = self._saved_stderr = None
        if not keep:
            self.remove()

    def remove(self) -> None:
        """Remove a temporary log; descriptor 2 stays as it is."""
        if self._temporary and self.path is not None:
            self.path.unlink(missing_ok=True)

    def explain(self) -> EdgeKVError:
        """One sentence from the end of the log: why the server did not start, or stopped."""
        lines = self._tail()
        text = "\n".join(lines)
        errors = [bare_message(line) for line in lines if (m := _PREFIX.match(line)) and m["level"] == "E"]
        first = errors[0] if errors else bare_message(lines[-1]) if lines else "it says nothing"
        for kind, pattern, meaning in _MEANINGS:
            if match := re.search(pattern, text):
                line = text[text.rfind("\n", 0, match.start()) + 1:].split("\n", 1)[0]
                return kind(meaning.format(*match.groups(), line=bare_message(line), first=first) + self._where())
        return EdgeKVError(f"llama.cpp's server gave up: {first}" + self._where())

    def _tail(self) -> list[str]:
        if self.path is None:
            return []
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, self.path.stat().st_size - _TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()]

    def _where(self) -> str:
        return f" (its log: {self.path})" if self.path is not None else " (its log is above)"


def _remove_orphans() -> None:
    """Remove temporary logs of killed processes after a day, which leaves time to read them."""
    for path in Path(tempfile.gettempdir()).glob(f"{_NAME}*.log"):
        with suppress(OSError, ValueError):  # another user's file, or one that is gone or not ours
            pid = int(path.name.removeprefix(_NAME).split("-")[0])
            if not psutil.pid_exists(pid) and time.time() - path.stat().st_mtime > _ORPHAN_S:
                path.unlink()


def bare_message(line: str) -> str:
    """A log line without its time, level, and the names of the part and function that wrote it."""
    match = _PREFIX.match(line)
    return re.sub(r"^(\w+\s+)?\w+: ", "", match["text"]) if match else line


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):
        return None
