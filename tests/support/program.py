"""The program itself in a process of its own, without a terminal and in a pseudo-terminal."""

import re
import signal
import termios
import time

import pexpect
import pytest
from support.serve_process import EDGEKV

from edgekv.common.errors import EXIT_OK

CONTROL = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|[()][A-Z0-9]|[=>])")


class Screen:
    """A chat in a pseudo-terminal, read without the terminal's control sequences."""

    def __init__(self, environment: dict[str, str], *arguments: str):
        self.child = pexpect.spawn(
            EDGEKV[0], [*EDGEKV[1:], "chat", *arguments], encoding="utf-8", dimensions=(40, 200),
            env={**environment, "PROMPT_TOOLKIT_NO_CPR": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore Ctrl-C, and hand that on
        )
        self._raw, self._seen = "", 0
        self.greeting = ""

    def until(self, pattern: str, timeout: float = 90) -> str:
        """The text shown since the last call, up to and with `pattern`, in which a space stands for the end of a line too: notes and answers are
        wrapped."""
        spaced = re.compile(re.sub(r" (?![+*?])", r"\\s+", pattern), re.DOTALL)
        end = time.monotonic() + timeout
        while True:
            shown = CONTROL.sub("", self._raw)
            if match := spaced.search(shown, self._seen):
                new, self._seen = shown[self._seen:match.end()], match.end()
                return new
            assert time.monotonic() < end, f"{pattern!r} does not come; the screen shows:\n{shown[self._seen:]}"
            try:
                self._raw += self.child.read_nonblocking(4096, timeout=0.2)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                pytest.fail(f"{pattern!r} does not come, the chat has ended:\n{shown[self._seen:]}")

    def type(self, text: str) -> None:
        self.child.send(text)

    def say(self, line: str, pattern: str) -> str:
        """The text shown after a line, up to and with `pattern`."""
        self.type(f"{line}\r")
        return self.until(pattern)

    def ends(self) -> int:
        self.child.expect(pexpect.EOF, timeout=60)
        self.child.close()
        return self.child.exitstatus

    def leave(self, pattern: str = "") -> None:
        """Leave with Ctrl-D, once the chat reads keys: before, the terminal takes it for the end of a line that nobody reads."""
        end = time.monotonic() + 90
        while termios.tcgetattr(self.child.fileno())[3] & termios.ICANON:
            assert time.monotonic() < end, "the chat reads no keys"
            time.sleep(0.01)
        self.type("\x04")
        self.until(pattern)
        assert self.ends() == EXIT_OK, "the chat ended with another exit code"
