"""A terminal in memory, for what is printed in this process."""

import io

import pyte


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class TerminalScreen(Terminal):
    """A terminal that is read as a person sees it."""

    def __init__(self, n_columns: int, n_lines: int = 50):
        super().__init__()
        self.screen = pyte.HistoryScreen(n_columns, n_lines, history=1000, ratio=1)
        self._stream = pyte.Stream(self.screen)

    def write(self, text: str) -> int:
        self._stream.feed(text.replace("\n", "\r\n"))
        return len(text)

    def shown(self) -> str:
        above = ["".join(line[i].data for i in range(self.screen.columns)) for line in self.screen.history.top]
        return "\n".join(line.rstrip() for line in [*above, *self.screen.display]).rstrip()
