"""The chat's display: text, progress, footer, memory, advice."""

import io
import re
import sys
from functools import partial

import pytest
from msgspec.structs import replace
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from rich.console import Console
from support.program import CONTROL
from support.terminal import Terminal, TerminalScreen

from edgekv.cli.chat import commands
from edgekv.cli.chat.client import AnswerPiece, Progress, Timings
from edgekv.cli.chat.input import _Commands
from edgekv.cli.chat.kv_status import KvStatus, page_rows, selection_rows, tier_rows
from edgekv.cli.chat.render import Renderer, overflow_advice
from edgekv.cli.chat.session import ChatAnswer
from edgekv.cli.common.progress import Lines, ReadingBar
from edgekv.common.errors import ContextOverflow, EdgeKVError
from edgekv.common.reports import MemoryReport, SelectionReport, TierReport
from edgekv.common.units import rough_percent
from edgekv.config import KvOptions


class PaperKv:
    """A cache of 100 bytes and 64 tokens; with a selection, in mode sparse."""

    def __init__(self, selection: SelectionReport | None = None, tiers: TierReport = TierReport()):
        self.selection, self.tiers = selection, tiers
        self.n_begun = 0

    def begin(self) -> None:
        self.n_begun += 1

    def status(self, n_used: int) -> KvStatus:
        return KvStatus("exact" if self.selection is None else "sparse", n_used, 100, 64, self.selection, self.tiers)


def render(monkeypatch: pytest.MonkeyPatch, out: io.StringIO, pieces: list[AnswerPiece], plain: bool = True) -> str:
    monkeypatch.setattr(sys, "stdout", out)
    kv = PaperKv()
    with Renderer(kv, footer=True, plain=plain).turn() as show:
        for piece in pieces:
            show(piece)
    assert kv.n_begun == 1
    return out.getvalue()


def test_text_is_shown_as_it_is(monkeypatch):
    pieces = [AnswerPiece(thought="secret"), AnswerPiece(text="[bold]x[/bold] :smile: "), AnswerPiece(text="\x1b[31mred\r\n\tend")]
    assert render(monkeypatch, io.StringIO(), pieces) == "[bold]x[/bold] :smile: \x1b[31mred\r\n\tend\n"
    on_terminal = render(monkeypatch, Terminal(), pieces)
    assert "\x1b" not in on_terminal and "\r" not in on_terminal, "a model must not steer the terminal"
    assert on_terminal == "(thinking)\nsecret\n(answer)\n[bold]x[/bold] :smile: \N{REPLACEMENT CHARACTER}[31mred\n\tend\n"


SHOWN = """\
a short thought

Tiers

RAM holds every page; nothing is
ever dropped.
A line of its own.

 • one item that goes on beyond the
   edge
 • two_words and a*b

 Tier     Size
 ─────────────
 VRAM  2.0 GiB

  if x:
      return "<b>"

<b>HTML</b> \\(x\\) !a picture
(http://a/b.png) �[31mred"""

WRITTEN = """\
# Tiers
**RAM** holds every page; nothing is ever dropped.
A line of its own.
- one item that goes on beyond the edge
- two_words and a*b

| Tier | Size |
|---|---:|
| VRAM | 2.0 GiB |

```python
if x:
    return "<b>"
```
<b>HTML</b> \\(x\\) ![a picture](http://a/b.png) \x1b[31mred"""


@pytest.mark.parametrize("n_lines", [40, 6])
@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_markdown_is_drawn_as_it_comes(monkeypatch, n_lines, at_once):
    monkeypatch.setenv("COLUMNS", "36")
    monkeypatch.setenv("LINES", str(n_lines))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("edgekv.cli.chat.markdown._DRAW_S", 0)
    out = TerminalScreen(36, n_lines)
    pieces = [AnswerPiece(text=WRITTEN[i : i + at_once]) for i in range(0, len(WRITTEN), at_once)]
    render(monkeypatch, out, [AnswerPiece(thought="a short "), AnswerPiece(thought="thought"), *pieces], plain=False)
    assert out.shown() == SHOWN


def test_a_turn_of_thinking_alone_is_told_and_the_next_is_not(monkeypatch, capsys):
    renderer = Renderer(PaperKv(), footer=False)
    for pieces, told in [([AnswerPiece(thought="hm"), AnswerPiece(finish_reason="stop")], True),
                         ([AnswerPiece(thought="hm"), AnswerPiece(text="x"), AnswerPiece(finish_reason="stop")], False),
                         ([AnswerPiece(thought="hm")], False)]:  # stopped by the person
        with renderer.turn() as show:
            for piece in pieces:
                show(piece)
        renderer.footer(ChatAnswer("", None, False, None))
        assert ("only thinking came" in capsys.readouterr().err) == told


def test_commands_are_completed_with_what_they_do():
    found = list(_Commands(commands.words(), list).get_completions(Document("/re"), CompleteEvent()))
    assert [(one.text, one.display_meta_text) for one in found] == [
        ("/regen", "Make the last answer again."), ("/read", "Put a file's text before the next message.")]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_prompt_that_is_read_shows_speed_and_time_left(monkeypatch, capsys, terminal):
    now = [0.0]
    for watched in (ReadingBar, Lines):
        monkeypatch.setattr(f"edgekv.cli.chat.render.{watched.__name__}", partial(watched, clock=lambda: now[0]))
    renderer = Renderer(PaperKv(), footer=True)
    renderer.console = Console(stderr=True, highlight=False, soft_wrap=True, force_terminal=terminal, width=160)
    with renderer.turn() as show:
        for n in range(1000, 7001, 500):
            show(AnswerPiece(progress=Progress(8000, 1000, n)))
            now[0] += 5 * (1 + n / 1000)  # 10 seconds at first, 37.5 at last
        show(AnswerPiece(text="answer"))
    err = CONTROL.sub("", capsys.readouterr().err)
    lines = [line.strip() for line in re.split(r"[\r\n]+", err) if "tokens" in line]
    if terminal:
        assert "reading" in lines[0] and "0/7,000 tokens" in lines[0] and "left" not in lines[0]
        assert any(re.search(r"500/7,000 tokens +50 tokens/s$", line) for line in lines), "nobody knows yet"
        assert any(re.search(r"5,500/7,000 tokens +15 tokens/s, about 2 min left", line) for line in lines)
    else:
        assert re.fullmatch(r"reading: 1,500 of 7,000 tokens, 40 tokens/s, 21 % done, about [56] min left", lines[0])
        assert len(lines) == 7, "one every half minute"
        assert "reading finished, after 5 min in all" in err


def test_footer_says_what_stock_would_do(capsys, monkeypatch):
    paper, answer = PaperKv(), ChatAnswer("x", Timings(3, 10, 50.0, 5, 100.0), False, "stop")
    monkeypatch.setattr(paper, "status", lambda n_used: KvStatus("exact", n_used, 100, 64, stock_tps=14.96))
    Renderer(paper, footer=True).footer(answer)
    assert capsys.readouterr().err.rstrip().endswith("decode 40.0 t/s · llama.cpp about 15 t/s")


@pytest.mark.parametrize(("answer", "footer"), [
    (ChatAnswer("x", Timings(3, 10, 50.0, 5, 100.0), False, "stop"),
     "context 18/64 · KV exact 18 B of 100 B · prefill 200 t/s · decode 40.0 t/s"),
    (ChatAnswer("x", Timings(3, 1, 9.0, 1, 0.001), True, None), "context 5/64 · KV exact 5 B of 100 B · stopped by you"),
    (ChatAnswer("x", Timings(0, 59, 59.0, 5, 0.0), False, "length"), "prefill 1000 t/s · cut: the context is full"),
    (ChatAnswer("x", Timings(0, 1, 1.0, 5, 0.0), False, "length"), "cut at --max-tokens"),
])
def test_footer(capsys, answer, footer):
    Renderer(PaperKv(), footer=True).footer(answer)
    out, err = capsys.readouterr()
    assert footer in err and not out and "\x1b" not in err


MIB = 1 << 20
CHOSEN = SelectionReport(n_selections=9000, n_visible=9000 * 7168, n_read=9000 * 474, n_certain=9000 * 237, n_hits=3_882_060, mass=80.0,
                         mass_hits=76.0, error_sum=6.2, n_errors=1000)
TIERS = TierReport(n_resident=5760, n_home=17_000, n_filling=90, n_moving=10, n_slots=11_520, slot_bytes=4096,
                   moved_bytes=30 * MIB, n_promotions=7000, n_demotions=1230, reasons=(("resident", "hot", 5000), ("resident", "pinned", 760),
                                                                 ("home", "cold", 17_000)))


def test_footer_of_mode_sparse(capsys):
    answer = ChatAnswer("x", Timings(3, 10, 50.0, 5, 100.0), False, "stop")
    whole = ("context 18/64 · KV sparse reads 474 of 7,168 tokens a head, error ~0.6 % · arena 22.5 of 45.0 MiB, hit 91 %"
             " · prefill 200 t/s · decode 40.0 t/s")

    def footer(kv: PaperKv, width: int | None = None) -> str:
        renderer = Renderer(kv, footer=True)
        if width:
            renderer.console = Console(stderr=True, highlight=False, soft_wrap=True, force_terminal=True, width=width)
        renderer.footer(answer)
        return CONTROL.sub("", capsys.readouterr().err).rstrip("\n")

    assert footer(PaperKv(CHOSEN, TIERS)) == whole == footer(PaperKv(CHOSEN, TIERS), len(whole))
    narrow = [footer(PaperKv(CHOSEN, TIERS), width) for width in (150, 100, 80, 50)]
    assert all(len(line) <= width for line, width in zip(narrow, (150, 100, 80, 50)))
    assert "prefill" not in narrow[1] and "arena hit 91 %" in narrow[1] and "· reads 6.6 %, error ~0.6 % ·" in narrow[2] and "KV" not in narrow[3]
    assert all("context" in line and "decode" in line and ("474 of 7,168" in line or "reads 6.6 %" in line) for line in narrow)
    assert "KV sparse reads all tokens · decode" in footer(PaperKv(SelectionReport()), 70), "a short context is attended whole"
    without = footer(PaperKv(replace(CHOSEN, error_sum=0.0, n_errors=0), TIERS))
    assert "reads 474 of 7,168 tokens a head · arena" in without, "nobody estimated an error"


@pytest.mark.parametrize(("error", "text"), [(0.0, "0 %"), (0.00062, "0.06 %"), (0.0062, "0.6 %"), (0.0096, "1 %"), (0.047, "5 %"),
                                             (0.0951, "10 %"), (0.123, "12 %"), (2.0, "200 %")])
def test_an_error_has_one_digit_that_counts(error: float, text: str):
    assert rough_percent(error) == text


def lines(rows: list[tuple[str, str]]) -> str:
    return "\n".join(f"{name}: {' '.join(value.split())}" for name, value in rows)


def test_memory_of_mode_sparse():
    memory = MemoryReport(home_bytes=180 * MIB, observation_bytes=MIB, workspace_bytes=1024, sketch_bytes=17 * MIB,
                          arena_bytes=45 * MIB, table_bytes=MIB, n_cells=8192, n_cells_used=4096)
    shown = lines([*tier_rows(memory, TIERS, KvOptions()), *page_rows(TIERS), *selection_rows(CHOSEN, TIERS)])
    assert shown.splitlines() == [
        "arena: 45.0 MiB 22.5 MiB used: 5,770 of 11,520 slots of 4.0 KiB",
        "home: 180.0 MiB 90.0 MiB used: 4,096 of 8,192 tokens",
        "sketches: 17.0 MiB of all keys but the newest",
        "tables: 2.0 MiB page table, attention mass",
        "work space: 1.0 KiB",
        "above stock: 64.0 MiB all of these but home",
        "pages: 22,860 of 1 layer and KV head each",
        "in the arena: 5,760 hot (5,000); pinned (760)",
        "on the way there: 10",
        "only at home: 17,000 cold",
        "being filled: 90",
        "reads: 474 of 7,168 tokens a head: 6.6 %, of these 50.0 % for certain",
        "error: ~0.6 % of a head's output (estimated)",
        "arena hits: 91.0 % of the tokens read, 95.0 % of the attention mass",
        "moved: 30.0 MiB: 7,000 pages into the arena, 1,230 out, 0 out because they changed, 0 copies failed",
    ]
    assert "reads: everything so far" in lines(selection_rows(SelectionReport(), TierReport()))


def test_overflow_advice():
    error = ContextOverflow("too long", 3000, 2048)
    assert "start with --ctx 4096 or more" in overflow_advice(error, 8192, in_session=False)
    assert "/undo" in overflow_advice(error, 8192, in_session=True)
    assert overflow_advice(error, None, in_session=True) == "too long: shorten the message (it is kept), /undo or /clear", "a server elsewhere"
    assert "no longer context" in overflow_advice(ContextOverflow("too long", 9000, 8192), 8192, in_session=False)
    assert "8192, would leave no room" in overflow_advice(ContextOverflow("too long", 9000, 2048), 8192, in_session=False)


@pytest.mark.parametrize(("line", "sentence"), [
    ("/hlep", "did you mean /help"), ("/xyzzy", "/help lists them"), ("/save", "/save FILE"), ("/clear all", "takes nothing"),
])
def test_command_mistakes(line, sentence):
    with pytest.raises(EdgeKVError, match=sentence):
        commands.run(None, line)


# ---- progress off a terminal -----------------------------------------------------------------------------------------------------


def test_progress_off_a_terminal():
    """A line when a part is finished, one every half minute within it, and nothing of runs that are over at once."""
    said, now = [], [0.0]
    lines = Lines(lambda: now[0], said.append)
    for now[0], what, done, left in ((1, "prose: read", 0, None), (29, "prose: off", 100, None), (40, "prose: exact", 200, 90.0),
                                     (69, "prose: sparse", 300, 80.0), (71, "prose: ema", 400, 75.0), (73.5, "code: read", 500, 70.0),
                                     (74, "passkey: read", 501, 70.0), (104, "passkey: off", 600, None)):
        lines(what, done, 1000, left)
    now[0] = 200
    lines.close()
    assert said == ["prose: exact, 20 % done, about 90 s left".replace("90 s", "2 min"), "prose: ema, 40 % done, about 75 s left",
                    "prose finished; code: read, 50 % done, about 70 s left", "passkey: off, 60 % done, about 69 s left",
                    "passkey finished, after 3 min in all"]
    short, silent = Lines(lambda: now[0], said.append), len(said)
    for what in ("a", "b: c", "d"):
        short(what, 1, 2)
    short.close()
    assert len(said) == silent


def test_time_left_where_the_caller_does_not_know():
    """By a rule of three, from where a count begins."""
    said, now = [], [0.0]
    lines = Lines(lambda: now[0], said.append)
    for now[0], done, total in ((0, 0, 50), (10, 50, 50), (20, 0, 1000), (60, 200, 1000)):
        lines("decode", done, total)
    assert said == ["decode, 20 % done, about 3 min left"]
