"""Shows an answer as the model writes it."""

from typing import Protocol, TextIO


class Shown(Protocol):
    """Where a turn's text goes."""

    def show(self, text: str, thinking: bool) -> None: ...

    def end(self) -> None:
        """Leave the cursor at the start of a line."""


class AsItComes:
    """For pipes, without what the model thought, and for terminals on which nothing is drawn."""

    def __init__(self, out: TextIO, is_terminal: bool):
        self._out, self._is_terminal = out, is_terminal
        self._thinking, self._at_line_start = False, True

    def show(self, text: str, thinking: bool) -> None:
        if thinking and not self._is_terminal:
            return
        self._switch(thinking)
        self._write(text)

    def end(self) -> None:
        self._switch(thinking=False)
        if not self._at_line_start:
            self._write("\n")

    def _switch(self, thinking: bool) -> None:
        if thinking == self._thinking:
            return
        self._thinking = thinking
        if not thinking and not self._at_line_start:
            self._write("\n")
        self._write("(thinking)\n" if thinking else "(answer)\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        self._at_line_start = text.endswith("\n")
