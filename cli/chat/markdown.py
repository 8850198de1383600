"""Draws an answer's Markdown while it comes: blocks that are complete stay, the last one is drawn again as it grows."""

import time
from collections.abc import Callable
from itertools import pairwise

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import CodeBlock, Heading, Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.syntax import Syntax

_DRAW_S = 0.1
"""Seconds between two drawings of the growing block, at least."""

_PAUSES = 20
"""And at least so many times what the last one took: a long block takes milliseconds, and the cores are the model's."""

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable(
    # none of a model's text may vanish, and its lines stay lines: no HTML, no pictures, no definitions of links, no underlined headings
    ["escape", "entity", "image", "reference", "lheading", "html_block", "html_inline"])


class DrawnAnswer:
    """What a model thinks, dim, and what it says. The texts hold no control characters."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic):
        self._console, self._now = console, now
        self._stream: MarkdownStream | None = None
        self._thinking = False

    def show(self, text: str, thinking: bool) -> None:
        """Show more of it; the newest perhaps only with what comes next."""
        if self._stream is None or thinking != self._thinking:
            self.end()
            self._stream = MarkdownStream(self._console, "dim" if thinking else "none", self._stream is not None, self._now)
            self._thinking = thinking
        self._stream.add(text)

    def end(self) -> None:
        """Show all that came."""
        if self._stream is not None:
            self._stream.end()


class MarkdownStream:
    """One text that comes in pieces. follows: another one stands above it."""

    def __init__(self, console: Console, style: str, follows: bool, now: Callable[[], float]):
        self._console, self._style, self._follows, self._now = console, style, follows, now
        self._growing = ""
        """The text of the last block, and of what may still belong to it."""
        self._live: Live | None = None
        self._next = float("-inf")
        """When it may be drawn again."""

    def add(self, text: str) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False,
                              vertical_overflow="visible")
            self._live.start()
        self._growing += text
        if (begun := self._now()) < self._next:
            return
        *complete, self._growing = _blocks(self._growing)
        self._keep(complete)
        self._live.update(_Block(self._growing, self._style, self._follows, fits_screen=True), refresh=True)
        drawn = self._now()
        self._next = drawn + max(_DRAW_S, _PAUSES * (drawn - begun))

    def end(self) -> None:
        if self._live is not None:
            self._live.update("")
            self._live.stop()
            self._live = None
            self._keep(_blocks(self._growing + "\n"))
            self._growing = ""

    def _keep(self, blocks: list[str]) -> None:
        """Print them for good."""
        for block in blocks:
            if block.strip():
                if self._live is not None:
                    self._live.update("")  # what grows is drawn below them, with the next piece
                self._console.print(_Block(block, self._style, self._follows))
                self._follows = True


def _blocks(text: str) -> list[str]:
    """The text's blocks. All but the last are as they will stay, whatever comes; a line that has not ended belongs to the last."""
    lines = text.split("\n")
    starts = [token.map[0] for token in _PARSER.parse("\n".join(lines[:-1])) if token.level == 0 and token.map and token.nesting >= 0]
    return ["\n".join(lines[first:end]) for first, end in pairwise([0, *starts[1:], len(lines)])]


class _Block:
    """A text without the blank lines around it."""

    def __init__(self, text: str, style: str, follows: bool, fits_screen: bool = False):
        """follows: a block stands above it. fits_screen: only its last lines, if it is higher than the screen: nothing beyond can be drawn again."""
        self._text, self._follows, self._fits_screen = _Text(text, style), follows, fits_screen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._text, options.update(height=None), pad=False)
        full = [i for i, line in enumerate(lines) if any(segment.text.strip() for segment in line)]
        lines = [[]] * self._follows + (lines[full[0]:full[-1] + 1] if full else [])
        for line in lines[1 - console.height:] if self._fits_screen else lines:
            yield from line
            yield Segment.line()


class _Code(CodeBlock):
    """Indented, in the terminal's own colours, on its own background."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        syntax = Syntax(str(self.text).rstrip(), self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True)
        yield Padding(syntax, (0, 0, 0, 2))


class _Heading(Heading):
    """At the left, as all text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _Text(Markdown):
    """Markdown whose lines stay lines, and whose links show their address."""

    elements = {**Markdown.elements, "heading_open": _Heading, "fence": _Code, "code_block": _Code}

    def __init__(self, text: str, style: str):
        super().__init__("", style=style, hyperlinks=False)
        self.parsed = _PARSER.parse(text)
        for inline in self.parsed:
            for child in inline.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"
