"""Shows a chat: the answer on standard output; progress, footer and notes on standard error."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, ConsoleDimensions
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from edgekv.cli.chat import client
from edgekv.cli.chat.client import PLACES, AnswerPiece, Message, Timings, Usage
from edgekv.cli.chat.kv_status import KvStatus, reads_text
from edgekv.cli.chat.piped import unwritable
from edgekv.cli.chat.plain import AsItComes, Shown
from edgekv.cli.chat.session import ChatAnswer
from edgekv.cli.common.progress import Lines, ReadingBar
from edgekv.common.errors import ContextOverflow
from edgekv.common.reports import SelectionReport
from edgekv.common.units import duration, rough_percent, size, size_of

if TYPE_CHECKING:
    from edgekv.cli.chat.views import ServerView

BAR_FROM_TOKENS = 512
"""Prompts with fewer tokens to read get no progress bar, which would flicker."""

WIDEST = 100
"""Characters of a line on a terminal."""

_LFLAG = 3  # of termios.tcgetattr()

# A model's output must not steer the terminal.
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "\N{REPLACEMENT CHARACTER}") | {0x09: "\t", 0x0A: "\n", 0x0D: None}

Part = list[tuple[int, str]]
"""(rank, text) for each form of a part of the footer, the longest first; on a narrow terminal the lowest rank gives way first."""

_LAST = 9


class Renderer:
    """Shows one turn after the other. Plain text where a stream is not a terminal; no styles with NO_COLOR."""

    def __init__(self, kv: "ServerView | None", footer: bool, plain: bool = False):
        """kv: None: it is set before the first turn. plain: answers are shown as they come, on a terminal too."""
        self.kv = kv
        self._footer = footer
        self._only_thought = False  # in the last turn
        self.console = _console(sys.stderr)
        self._out = sys.stdout
        self.on_terminal = self._out.isatty()
        self._drawn: Callable[[], Shown] | None = None
        drawing = _console(self._out)
        if self.on_terminal and not plain and not drawing.is_dumb_terminal and drawing.encoding.startswith("utf"):
            from edgekv.cli.chat.markdown import DrawnAnswer  # a sixth of a second, while the model is loaded

            self._drawn = partial(DrawnAnswer, drawing)
        if hasattr(self._out, "reconfigure"):
            self._out.reconfigure(errors="replace")  # an answer with an emoji must not end a chat in a plain ASCII locale

    def shown(self) -> Shown:
        """Where the next turn's text goes."""
        return AsItComes(self._out, self.on_terminal) if self._drawn is None else self._drawn()

    @property
    def styled(self) -> bool:
        """Whether to use colours and bold text."""
        return self.console.color_system is not None

    @contextmanager
    def turn(self) -> Iterator[Callable[[AnswerPiece], None]]:
        """Yields the function that shows pieces; leaves the cursor at the start of a line in any case."""
        turn = _Turn(self)
        if self.kv is not None:
            self.kv.begin()
        with _unseen_keys():
            try:
                yield turn.show
            finally:
                turn.end()
                self._only_thought = turn.ended and turn.thought and not turn.said

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """A spinner for work of unknown length; nothing where standard error is not a terminal."""
        with _unseen_keys(), self._progress(SpinnerColumn(), TextColumn("{task.description}", markup=False)) as progress:
            progress.add_task(text)
            yield

    def footer(self, answer: ChatAnswer) -> None:
        if self._only_thought:
            self.note("only thinking came, and no answer: the text ended before the thinking did")
        if not self._footer or answer.timings is None or self.kv is None:
            return
        timings = answer.timings
        kv = self.kv.status(timings.n_context)
        parts: list[Part] = [
            [(_LAST, f"context {timings.n_context:,}" + (f"/{kv.n_ctx:,}" if kv.n_ctx else ""))],
            *_kv_parts(kv),
            *([_known(answer.usage)] if answer.usage is not None and answer.usage.n_cached else []),
            *([[(0, f"prefill {timings.prefill_tps:.0f} t/s"), (_LAST, "")]] if timings.prefill_tps else []),
            *([[(_LAST, f"decode {timings.decode_tps:.1f} t/s")]] if timings.decode_tps else []),
            *([[(2, f"llama.cpp about {kv.stock_tps:.3g} t/s"), (_LAST, "")]] if kv.stock_tps else []),
            *([[(_LAST, f"{answer.usage.n_left:,} oldest tokens left the context" + (f", {answer.usage.n_back:,} came back" if answer.usage.back else ""))]]
              if answer.usage is not None and answer.usage.left else []),
            *([(_LAST, ending)] for ending in _ending(answer, timings, kv.n_ctx)),
            *([[(_LAST, "only thinking")]] if self._only_thought else []),
        ]
        self.note(one_line(parts, self._width))

    def note(self, text: str) -> None:
        self._print(Text(text, style="dim"))

    def error(self, text: str) -> None:
        self._print(Text(text, style="red"))

    def warn(self, text: str) -> None:
        self._print(Text(text, style="yellow"))

    def exchange(self, turns: Sequence[Message]) -> None:
        """Show the last question, its last line at least, and its answer, of a conversation that goes on."""
        for message in turns[-2:]:
            text = message["content"].translate(_CONTROLS)
            if message["role"] == "user":
                self.note("\n> " + text.rstrip().rpartition("\n")[2])
            else:
                shown = self.shown()
                shown.show(text, False)
                shown.end()
        self.note("")

    def table(self, rows: list[tuple[str, str]]) -> None:
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            if self._width is None or not value:
                self._print(Text(f"  {name:<{width}}  " if value else name, style="bold").append(value, style="not bold"))
                continue
            row = Table.grid(padding=(0, 2, 0, 0))
            row.add_column(width=width + 2, no_wrap=True)
            row.add_column()
            row.add_row(Text(f"  {name}", style="bold"), Text(value))
            self._print(row)

    @property
    def _width(self) -> int | None:
        """Characters of a line; None: no terminal, where a line is never broken."""
        return self.console.width if self.console.is_terminal else None

    def _print(self, shown: Text | Table) -> None:
        self.console.print(shown, soft_wrap=self._width is None)

    def _progress(self, *columns: SpinnerColumn | TextColumn | BarColumn) -> Progress:
        # Rich must leave sys.stderr alone: the server's log swaps it while the model loads.
        return Progress(
            *columns, console=self.console, transient=True, redirect_stdout=False, redirect_stderr=False,
            disable=not self.console.is_terminal,
        )


class _Turn:
    def __init__(self, renderer: Renderer):
        self._renderer = renderer
        self._shown = renderer.shown()
        self._reading: ReadingBar | None = None
        self._bar: Progress | None = None
        self._lines: Lines | None = None
        self.thought = self.said = self.ended = False

    def show(self, piece: AnswerPiece) -> None:
        if piece.text or piece.thought or piece.finish_reason:
            self._close_bar()
        elif piece.progress:
            self._show_bar(piece.progress)
        self.thought |= bool(piece.thought)
        self.said |= bool(piece.text.strip())
        self.ended |= piece.finish_reason is not None
        for text, thinking in ((piece.thought, True), (piece.text, False)):
            if text:
                with _writing():
                    self._shown.show(text.translate(_CONTROLS) if self._renderer.on_terminal else text, thinking)

    def end(self) -> None:
        self._close_bar()
        with _writing():
            self._shown.end()

    def _show_bar(self, progress: client.Progress) -> None:
        n_total, n_done = progress.n_total - progress.n_cached, progress.n_processed - progress.n_cached
        if n_total < BAR_FROM_TOKENS:
            return
        reading = self._reading or self._begin_reading(progress, n_total)
        reading.at(progress.n_processed)
        speed, left = reading.tokens_per_second, reading.seconds_left
        said = "" if speed is None else f"{speed:,.0f} tokens/s"
        if self._bar is not None:
            said += "" if left is None else f", about {duration(left)} left"
            self._bar.update(self._bar.task_ids[0], completed=n_done, said=said, refresh=True)
        elif left is not None and self._lines is not None:
            self._lines(f"reading: {n_done:,} of {n_total:,} tokens, {said}", n_done, n_total, left)

    def _begin_reading(self, progress: client.Progress, n_total: int) -> ReadingBar:
        """A bar on a terminal; elsewhere a line every now and then."""
        reading = self._reading = ReadingBar(progress.n_total, progress.n_processed)
        if not self._renderer.console.is_terminal:
            self._lines = Lines(say=self._renderer.note)
            return reading
        self._bar = self._renderer._progress(TextColumn("reading"), BarColumn(), TextColumn("{task.completed:,.0f}/{task.total:,.0f} tokens"),
                                             TextColumn("{task.fields[said]}"))
        self._bar.add_task("reading", total=n_total, said="")
        self._bar.start()
        return reading

    def _close_bar(self) -> None:
        self._reading = None
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._lines is not None:
            self._lines.close()
            self._lines = None


class _Console(Console):
    """Its lines are no longer than people like to read."""

    @property  # type: ignore[misc]  # rich can also set it; nothing here does
    def size(self) -> ConsoleDimensions:
        width, height = super().size
        return ConsoleDimensions(min(width, WIDEST), height)


def _console(file: TextIO) -> Console:
    """By rich's own rule NO_COLOR leaves bold text; here it leaves nothing."""
    console = _Console(file=file, highlight=False)
    return _Console(file=file, highlight=False, color_system=None) if console.no_color else console


@contextmanager
def _writing() -> Iterator[None]:
    """Raises EdgeKVError where standard output cannot be written, but for a pipe whose reader has left."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(error) from None


@contextmanager
def _unseen_keys() -> Iterator[None]:
    """Inside the block typed keys, Ctrl-C too, are not echoed into the answer; they wait for the next prompt."""
    try:
        import termios
    except ImportError:  # Windows
        termios = None  # type: ignore[assignment]
    if termios is None or not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    silent = [*before[:_LFLAG], before[_LFLAG] & ~termios.ECHO, *before[_LFLAG + 1:]]
    try:
        termios.tcsetattr(fd, termios.TCSANOW, silent)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)


def one_line(parts: list[Part], width: int | None) -> str:
    """The parts side by side within `width` characters; None: each in its longest form."""
    while True:
        line = " · ".join(forms[0][1] for forms in parts if forms[0][1])
        long = [forms for forms in parts if len(forms) > 1]
        if width is None or len(line) <= width or not long:
            return line
        shrinking = min(long, key=lambda forms: forms[0][0])
        parts = [forms[1:] if forms is shrinking else forms for forms in parts]


def _kv_parts(kv: KvStatus) -> list[Part]:
    chosen = kv.selection
    if kv.kept is not None:
        kept, n_tokens = kv.kept
        return [[(2, f"KV {kv.mode}: {kept:,} of {n_tokens:,} tokens kept"), (_LAST, f"KV {kv.mode} {kept:,} kept")]]
    if kv.mode is None:
        return []
    if chosen is None:
        sizes = f" {size(kv.used_bytes)} of {size(kv.total_bytes)}" if kv.used_bytes is not None and kv.total_bytes is not None else ""
        return [[(_LAST, f"KV {kv.mode}{sizes}")]]
    parts: list[Part] = [_reads(kv.mode, chosen)]
    if kv.tiers.n_slots:
        arena = f"arena {size_of(kv.tiers.n_resident * kv.tiers.slot_bytes, kv.tiers.n_slots * kv.tiers.slot_bytes)}"
        if chosen.n_selections:
            hit = f"hit {100 * chosen.hit_rate:.0f} %"
            parts.append([(1, f"{arena}, {hit}"), (3, f"arena {hit}"), (_LAST, "")])
        else:
            parts.append([(1, arena), (_LAST, "")])
    return parts


def _known(usage: Usage) -> Part:
    """The part of the prompt that was not read again, and where it came from."""
    if not usage.origins:
        return [(0, f"prompt {usage.n_prompt:,}: {usage.n_cached:,} known"), (_LAST, "")]
    places = ", ".join(f"{n:,} from {place}" for place, n in usage.origins)
    slower = ", ".join(f"{n:,} from {place}" for place, n in usage.origins if place != PLACES[0])
    return [(1, f"prompt {usage.n_prompt:,}: {places}"), (2, slower), (_LAST, "")]


def _reads(mode: str, selection: SelectionReport) -> Part:
    """Tokens that each head read, and the estimated error of its output."""
    if not selection.n_selections:
        return [(_LAST, f"KV {mode} reads all tokens")]
    share = f"reads {100 * selection.attended:.1f} %"
    error = "" if selection.error is None else f", error ~{rough_percent(selection.error)}"
    return [(2, f"KV {mode} reads {reads_text(selection)}{error}"), (4, share + error), (_LAST, share)]


def _ending(answer: ChatAnswer, timings: Timings, n_ctx: int | None) -> list[str]:
    if answer.interrupted:
        return ["stopped by you"]
    if answer.finish_reason != "length":
        return []
    # One cell short: the last token was never fed back.
    return ["cut: the context is full"] if n_ctx is not None and timings.n_context >= n_ctx - 1 else ["cut at --max-tokens"]


def overflow_advice(error: ContextOverflow, n_ctx_train: int | None, in_session: bool) -> str:
    """The error and its remedy: shorten, or open a larger context where the model has one. n_ctx_train: None: this side cannot choose the
    context."""
    wanted = -(-((error.n_prompt_tokens or 0) + 256) // 1024) * 1024
    advice = "shorten the message (it is kept), /undo or /clear" if in_session else "shorten the prompt"
    if n_ctx_train is None:
        return f"{error}: {advice}"
    if wanted <= n_ctx_train:
        advice += f", or start with --ctx {wanted} or more"
    elif error.n_ctx is not None and error.n_ctx < n_ctx_train:
        advice += f"; even the largest --ctx of this model, {n_ctx_train}, would leave no room"
    else:
        advice += "; the model has no longer context"
    return f"{error}: {advice}"
