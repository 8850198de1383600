"""`edgekv chat` and `serve`: the client side against any server, the whole against the real one, with and without a terminal."""

from __future__ import annotations

import http.server
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pexpect
import pytest
from rich.console import Console

from edgekv.amounts import rough_percent, size, size_of
from edgekv.cli.chat import commands
from edgekv.cli.chat.client import ChatClient, Piece, Progress, Timings
from edgekv.cli.chat.kv import KvStatus, page_rows, selection_rows, tier_rows
from edgekv.cli.chat.pins import Pins, message_span
from edgekv.cli.chat.render import Renderer, overflow_advice
from edgekv.cli.chat.session import Answer, Conversation
from edgekv.cli.common.progress import Lines, Reading
from edgekv.errors import (
    EXIT_DOES_NOT_FIT,
    EXIT_INTERRUPTED,
    EXIT_MODEL,
    EXIT_OK,
    EXIT_RUNTIME,
    EXIT_USAGE,
    ContextOverflow,
    EdgeKVError,
)
from edgekv.live.reports import MemoryReport, SelectionReport, TierReport

# ---- the client, against a server made of paper -----------------------------------------------------------------------------


class PaperServer(http.server.ThreadingHTTPServer):
    """Answers each request with the next entry of `script`: (status, body) or a list of events."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _PaperHandler)
        self.script: list = []
        self.requests: list[dict] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _PaperHandler(http.server.BaseHTTPRequestHandler):
    server: PaperServer

    def do_POST(self) -> None:
        self.server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        entry = self.server.script.pop(0)
        if isinstance(entry, tuple):
            status, body = entry
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in entry:
            self.wfile.write(event.encode() if isinstance(event, str) else f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


TIMINGS = {"cache_n": 3, "prompt_n": 10, "prompt_ms": 50.0, "predicted_n": 5, "predicted_ms": 100.0}


def text(content: str, **more: object) -> dict:
    return {"choices": [{"delta": {"content": content}, "finish_reason": more.pop("finish_reason", None)}], **more}


@pytest.fixture
def paper() -> Iterator[PaperServer]:
    server = PaperServer()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def conversation(paper: PaperServer) -> Conversation:
    client = ChatClient(f"http://127.0.0.1:{paper.server_port}", "key", {"temperature": 0.0})
    return Conversation(client, system="be nice")


def say(conversation: Conversation, words: str, show: Callable[[Piece], None] = lambda piece: None) -> Answer:
    conversation.draft.text = words
    return conversation.send(show)


def roles(conversation: Conversation) -> str:
    return "".join(message["role"][0] for message in conversation.messages)


def test_an_answer_in_pieces(paper, conversation):
    paper.script = [[
        text("", prompt_progress={"total": 13, "cache": 3, "processed": 8, "time_ms": 9}),
        ": a comment, as the server sends while it is busy\n\n",
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        text("Hel"), text("lo [bold]x[/bold]"), text("", finish_reason="stop", timings=TIMINGS), "data: [DONE]\n\n",
    ]]
    pieces: list[Piece] = []
    answer = say(conversation, "hi", pieces.append)
    assert answer == Answer("Hello [bold]x[/bold]", Timings(3, 10, 50.0, 5, 100.0), False, "stop")
    assert pieces[0].progress == Progress(13, 3, 8) and pieces[1].thought == "hm"
    assert answer.timings.n_context == 18 and answer.timings.prefill_tps == 200 and answer.timings.decode_tps == 40
    sent = paper.requests[0]
    assert sent["temperature"] == 0.0 and sent["stream"] and sent["return_progress"]
    assert sent["messages"] == [{"role": "system", "content": "be nice"}, {"role": "user", "content": "hi"}]
    assert roles(conversation) == "sua" and not conversation.draft.content


def refuse(type_: str, **more: object) -> tuple[int, bytes]:
    return 400, json.dumps({"error": {"code": 400, "message": "no", "type": type_, **more}}).encode()


@pytest.mark.parametrize(("entry", "error", "sentence"), [
    (refuse("exceed_context_size_error", n_prompt_tokens=9160, n_ctx=2048), ContextOverflow, "9,160 tokens .* holds 2,048"),
    (refuse("invalid_request_error"), EdgeKVError, "refused the request: no"),
    ((500, b"<html>oops"), EdgeKVError, "<html>oops"),
    ((500, b""), EdgeKVError, "no reason"),
    ([text("Hel"), {"error": {"message": "out of paper"}}], EdgeKVError, "out of paper"),
    ([text("Hel"), "data: {half\n\n"], EdgeKVError, "in the middle of an answer"),
])
def test_a_refused_message_is_kept(paper, conversation, entry, error, sentence):
    paper.script = [entry, [text("fine")]]
    with pytest.raises(error, match=sentence):
        say(conversation, "hi")
    assert conversation.turns == [] and conversation.draft.content == "hi"
    assert conversation.send(lambda piece: None).text == "fine" and roles(conversation) == "sua"


def test_a_server_that_is_gone(paper, conversation):
    paper.shutdown()
    paper.server_close()
    with pytest.raises(EdgeKVError):
        say(conversation, "hi")


def interrupt_at(word: str) -> Callable[[Piece], None]:
    def show(piece: Piece) -> None:
        if piece.text == word or (word == "" and piece.progress):
            raise KeyboardInterrupt

    return show


def test_an_interrupted_answer_stays_as_far_as_it_came(paper, conversation):
    paper.script = [[text("one "), text("two "), text("three")], [text("fine")]]
    answer = say(conversation, "count", interrupt_at("two "))
    assert answer.interrupted and answer.text == "one two " and roles(conversation) == "sua"
    assert say(conversation, "more").text == "fine"
    assert [message["content"] for message in paper.requests[1]["messages"]][1:] == ["count", "one two ", "more"]


def test_an_interrupted_prefill_gives_the_message_back(paper, conversation):
    progress = text("", prompt_progress={"total": 9, "cache": 0, "processed": 1, "time_ms": 9})
    paper.script = [[progress, text("x")], [text("fine")]]
    conversation.draft.files.append(("a.txt", "contents\n"))
    assert say(conversation, "read", interrupt_at("")).interrupted
    assert conversation.turns == [] and conversation.draft.content == "a.txt:\n\ncontents\n\nread"
    assert conversation.send(lambda piece: None).text == "fine"


def test_regenerate_and_undo(paper, conversation):
    paper.script = [[text("one")], [text("two")], refuse("x"), [text("three")]]
    with pytest.raises(EdgeKVError):
        conversation.regenerate(lambda piece: None)
    with pytest.raises(EdgeKVError):
        conversation.undo()
    say(conversation, "q")
    assert conversation.regenerate(lambda piece: None).text == "two" and roles(conversation) == "sua"
    with pytest.raises(EdgeKVError):
        conversation.regenerate(lambda piece: None)
    assert conversation.turns[-1]["content"] == "two"
    assert conversation.undo() == "q" and roles(conversation) == "s"


def test_save_and_load(paper, conversation, tmp_path):
    path = tmp_path / "talk.json"
    with pytest.raises(EdgeKVError, match="nothing to save"):
        conversation.save(path)
    paper.script = [[text("grüß [b]Gott[/b]")]]
    say(conversation, "hi")
    assert conversation.save(path) == 3 and conversation.save(path) == 3  # its own file may be written again
    assert [p.name for p in tmp_path.iterdir()] == ["talk.json"], "no temporary file is left"
    other = Conversation(conversation.client)
    assert other.load(path) == 3 and other.messages == conversation.messages and other.system == "be nice"
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(EdgeKVError, match="choose another name"):
        conversation.save(tmp_path / "notes.txt")
    with pytest.raises(EdgeKVError, match="cannot be written: No such file"):
        conversation.save(tmp_path / "no" / "talk.json")


def test_save_on_a_full_disk(paper, conversation, tmp_path, monkeypatch):
    paper.script = [[text("x")]]
    say(conversation, "hi")
    path = tmp_path / "talk.json"
    conversation.save(path)
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EdgeKVError, match="No space left on device; nothing was saved"):
        conversation.save(path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["talk.json"]


@pytest.mark.parametrize(("content", "sentence"), [
    ("{", "not JSON"), ("{}", "a list"), ('["x"]', "message 1"), ('[{"role": "user"}]', "message 1"),
    ('[{"role": "user", "content": "x"}]', "take turns"),
    ('[{"role": "assistant", "content": "x"}, {"role": "user", "content": "x"}]', "take turns"),
    ("a\0b", "not a text file"), (None, "No such file"),
])
def test_load_refuses(conversation, tmp_path, content, sentence):
    path = tmp_path / "talk.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(EdgeKVError, match=sentence):
        conversation.load(path)
    assert conversation.system == "be nice"


# ---- what is shown ----------------------------------------------------------------------------------------------------------


class PaperKv:
    """A cache of 100 bytes and 64 tokens; with a selection, in mode sparse."""

    def __init__(self, selection: SelectionReport | None = None, tiers: TierReport = TierReport()):
        self.selection, self.tiers = selection, tiers
        self.n_begun = 0

    def begin(self) -> None:
        self.n_begun += 1

    def status(self, n_used: int) -> KvStatus:
        return KvStatus("exact" if self.selection is None else "sparse", n_used, 100, 64, self.selection, self.tiers)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def render(monkeypatch: pytest.MonkeyPatch, out: io.StringIO, pieces: list[Piece]) -> str:
    monkeypatch.setattr(sys, "stdout", out)
    kv = PaperKv()
    with Renderer(kv, footer=True).turn() as show:
        for piece in pieces:
            show(piece)
    assert kv.n_begun == 1
    return out.getvalue()


def test_text_is_shown_as_it_is(monkeypatch):
    pieces = [Piece(thought="secret"), Piece(text="[bold]x[/bold] :smile: "), Piece(text="\x1b[31mred\r\n\tend")]
    assert render(monkeypatch, io.StringIO(), pieces) == "[bold]x[/bold] :smile: \x1b[31mred\r\n\tend\n"
    on_terminal = render(monkeypatch, Terminal(), pieces)
    assert "\x1b" not in on_terminal and "\r" not in on_terminal, "a model must not steer the terminal"
    assert on_terminal == "(thinking)\nsecret\n(answer)\n[bold]x[/bold] :smile: \N{REPLACEMENT CHARACTER}[31mred\n\tend\n"


def read_by(seconds: Callable[[int], float], n_total: int, n_cached: int = 0, n_batch: int = 512, noise: float = 0.0):
    """A Reading, before and after each batch of a prompt whose token at position p takes seconds(p): (seconds so far, it, tokens there)."""
    now, rng = [0.0], np.random.default_rng(n_total)
    reading = Reading(n_total, n_cached, lambda: now[0])
    yield now[0], reading, n_cached
    for first in range(n_cached, n_total, n_batch):
        last = min(first + n_batch, n_total)
        now[0] += sum(map(seconds, range(first, last))) * (1 + noise * rng.standard_normal())
        reading.at(last)
        yield now[0], reading, last


@pytest.mark.parametrize(("start", "slope"), [(1.8e-3, 2.1e-6), (2e-4, 2e-7), (0.0, 1e-6), (1e-3, 0.0)])
@pytest.mark.parametrize(("n_total", "n_cached"), [(7680, 0), (31_000, 0), (7680, 3000), (2048, 0)])
def test_time_left_of_a_prompt(start, slope, n_total, n_cached):
    """Reading slows with depth. At half of the time the time left is within a quarter of what it takes, though batches' times scatter by
    a twentieth."""
    states = [(spent, reading.seconds_left, n) for spent, reading, n in read_by(lambda p: start + slope * p, n_total, n_cached, noise=0.05)]
    whole = states[-1][0]
    spent, left, n = next(state for state in states if state[0] >= whole / 2)
    assert left == pytest.approx(whole - spent, rel=0.25)
    if (start, slope, n_total, n_cached) == (1.8e-3, 2.1e-6, 7680, 0):  # the default model on one thread
        by_the_mean = spent * (n_total - n) / n
        assert by_the_mean < 0.6 * (whole - spent), "the mean so far promises half of it"
    assert [left for _, left, _ in states[:2]] == [None, None] and states[-1][1] == pytest.approx(0, abs=0.05 * whole)


def test_speed_of_a_prompt():
    """Of the last three batches, not of all."""
    speeds = [reading.tokens_per_second for _, reading, _ in read_by(lambda p: 1e-3 if p < 1024 else 4e-3, 4096)]
    assert speeds[0] is None and speeds[1:] == pytest.approx([1000, 1000, 1536 / 3.072, 1536 / 4.608, 250, 250, 250, 250])


@pytest.mark.parametrize("terminal", [True, False])
def test_a_prompt_that_is_read_shows_speed_and_time_left(monkeypatch, capsys, terminal):
    now = [0.0]
    for watched in (Reading, Lines):
        monkeypatch.setattr(f"edgekv.cli.chat.render.{watched.__name__}", partial(watched, clock=lambda: now[0]))
    renderer = Renderer(PaperKv(), footer=True)
    renderer.console = Console(stderr=True, highlight=False, soft_wrap=True, force_terminal=terminal, width=160)
    with renderer.turn() as show:
        for n in range(1000, 7001, 500):
            show(Piece(progress=Progress(8000, 1000, n)))
            now[0] += 5 * (1 + n / 1000)  # 10 seconds at first, 37.5 at last
        show(Piece(text="answer"))
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


@pytest.mark.parametrize(("answer", "footer"), [
    (Answer("x", Timings(3, 10, 50.0, 5, 100.0), False, "stop"),
     "context 18/64 · KV exact 18 B of 100 B · prefill 200 t/s · decode 40.0 t/s"),
    (Answer("x", Timings(3, 1, 9.0, 1, 0.001), True, None), "context 5/64 · KV exact 5 B of 100 B · stopped by you"),
    (Answer("x", Timings(0, 59, 59.0, 5, 0.0), False, "length"), "prefill 1000 t/s · cut: the context is full"),
    (Answer("x", Timings(0, 1, 1.0, 5, 0.0), False, "length"), "cut at --max-tokens"),
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
    answer = Answer("x", Timings(3, 10, 50.0, 5, 100.0), False, "stop")
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
    assert "prefill" not in narrow[1] and "arena hit 91 %" in narrow[1] and "KV sparse 6.6 %, error ~0.6 %" in narrow[2]
    assert all("context" in line and "decode" in line and ("474 of 7,168" in line or "6.6 %" in line) for line in narrow)
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
    shown = lines([*tier_rows(memory, TIERS, "b3"), *page_rows(TIERS), *selection_rows(CHOSEN, TIERS)])
    assert shown.splitlines() == [
        "arena: 45.0 MiB 22.5 MiB used: 5,770 of 11,520 slots of 4.0 KiB",
        "home: 180.0 MiB 90.0 MiB used: 4,096 of 8,192 tokens",
        "sketches: 17.0 MiB b3, of all keys but the newest",
        "tables: 2.0 MiB page table, scores, attention mass",
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
    assert "no longer context" in overflow_advice(ContextOverflow("too long", 9000, 8192), 8192, in_session=False)
    assert "8192, would leave no room" in overflow_advice(ContextOverflow("too long", 9000, 2048), 8192, in_session=False)


def test_sizes():
    assert (size_of(MIB, 3 * MIB), size_of(1024, MIB)) == ("1.0 of 3.0 MiB", "1.0 KiB of 1.0 MiB")
    assert [size(n) for n in (0, 1023, 1024, 180 << 20, 3 << 41)] == ["0 B", "1023 B", "1.0 KiB", "180.0 MiB", "6.0 TiB"]


@pytest.mark.parametrize(("line", "sentence"), [
    ("/hlep", "did you mean /help"), ("/xyzzy", "/help lists them"), ("/save", "/save FILE"), ("/clear all", "takes nothing"),
])
def test_command_mistakes(line, sentence):
    with pytest.raises(EdgeKVError, match=sentence):
        commands.run(None, line)


# ---- pins -------------------------------------------------------------------------------------------------------------------


class PaperTemplate:
    """A client whose tokens are characters, and whose template marks roles and trims contents."""

    def prompt(self, messages: list[dict[str, str]]) -> str:
        return "".join(f"<{m['role'][0]}>{m['content'].strip()}</>" for m in messages) + "<a>"

    def n_tokens(self, text: str) -> int:
        return 1 + len(text)  # one at the beginning


class PaperRuntime:
    def __init__(self, n_positions: int):
        self.cells = self
        self.positions = np.arange(n_positions)
        self.pins: list[tuple[int, int]] = []

    def stream(self) -> PaperRuntime:
        return self

    def unpin_all(self) -> None:
        self.pins.clear()

    def pin(self, first: int, last: int) -> None:
        self.pins.append((first, last))


@pytest.fixture
def pinned() -> Pins:
    conversation = Conversation(PaperTemplate(), system="be nice")
    said = (("user", " one "), ("assistant", "two"), ("user", "one"), ("assistant", "four"))
    conversation.turns = [{"role": role, "content": text} for role, text in said]
    return Pins(conversation)


def test_spans_are_where_the_tokens_stand(pinned):
    messages = pinned._conversation.messages
    prompt = "^" + PaperTemplate().prompt(messages)
    for index, message in enumerate(messages):
        first, last = message_span(PaperTemplate(), messages, index)
        assert prompt[first : last + 1] == message["content"].strip()
    assert message_span(PaperTemplate(), [{"role": "user", "content": ""}], 0) is None


def test_pins_follow_the_conversation(pinned):
    conversation, runtime = pinned._conversation, PaperRuntime(1000)
    assert list(pinned.apply(runtime)) == [0], "the system prompt is pinned from the start"
    pinned.add("3")
    pinned.add("last")
    before = pinned.apply(runtime)
    assert list(before) == [0, 3, 4] and runtime.pins == list(before.values())
    conversation.turns[-1] = {"role": "assistant", "content": "anew"}  # as /regen does
    assert list(pinned.apply(runtime)) == [0, 3] and runtime.pins == list(before.values())[:2]
    short = PaperRuntime(before[3][0] + 1)  # the tokens of the message are not all there yet
    assert pinned.apply(short)[3] == (before[3][0],) * 2 and pinned.apply(PaperRuntime(5)) == {0: (4, 4), 3: None}
    pinned.clear()
    assert pinned.apply(runtime) == {} and runtime.pins == []


@pytest.mark.parametrize(("which", "sentence"), [
    ("0", "use 1 to 4, last or system"), ("5", "no message 5"), ("first", "no message first"),
])
def test_pins_that_cannot_be(pinned, which, sentence):
    with pytest.raises(EdgeKVError, match=sentence):
        pinned.add(which)
    pinned._conversation.clear()
    pinned._conversation.system = None
    for name in ("system", "last"):
        with pytest.raises(EdgeKVError, match="there is no"):
            pinned.add(name)


# ---- the whole, without a terminal ------------------------------------------------------------------------------------------

EDGEKV = [sys.executable, "-c", "from edgekv.cli.main import main; main()"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("EDGEKV_", "NO_COLOR"))}
    # One thread: several spin for each other, which on a busy machine takes a hundred times as long.
    return clean | {
        "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path), "TERM": "xterm-256color", "EDGEKV_THREADS": "1",
    }


@pytest.fixture
def edgekv(environment: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*EDGEKV, *arguments], input=stdin, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False,
            env={**environment, **variables},
        )

    return run


SHORT = ("--temp", "0", "-n", "8", "--ctx", "512")


def test_one_shot(edgekv, default_model):
    whole = edgekv("chat", "-p", "Say hello.", *SHORT)
    assert whole.returncode == EXIT_OK and whole.stdout.strip() and whole.stdout.endswith("\n")
    assert whole.stderr == "", "nothing beside the answer where nobody watches"
    assert "\x1b" not in whole.stdout
    piped = edgekv("chat", str(default_model), *SHORT, stdin="Say hello.")
    assert piped.stdout == whole.stdout
    portable = edgekv("chat", "-p", "Say hello.", "--footer", *SHORT, EDGEKV_ISA="portable", EDGEKV_DEVICE="cpu")
    assert portable.returncode == EXIT_OK and "KV exact" in portable.stderr, "sketches are slow to scan there"
    both = edgekv("chat", "-p", "Say", "--footer", *SHORT, stdin="hello.", EDGEKV_TYPE_K="q8_0", EDGEKV_KV="off")
    assert both.returncode == EXIT_OK and "KV off" in both.stderr and "context" not in both.stdout and "\x1b" not in both.stderr


def test_every_setting_reaches_the_sampler(edgekv, default_model):
    first, second = (edgekv("chat", "-p", "Tell me a story.", "-n", "12", "--ctx", "512", "--seed", seed).stdout for seed in "12")
    again = edgekv("chat", "-n", "12", EDGEKV_PROMPT="Tell me a story.", EDGEKV_CTX="512", EDGEKV_SEED="1",
                   EDGEKV_MODEL=str(default_model)).stdout
    assert first == again != second


@pytest.mark.parametrize(("arguments", "stdin", "code", "sentence"), [
    (["chat"], "  \n", EXIT_USAGE, "prompt is empty"),
    (["chat", "--kv", "fast", "-p", "x"], "", EXIT_USAGE, "'exact', 'sparse', 'evict', 'off'"),
    (["chat", "--kv", "exact", "--attend", "10%", "-p", "x"], "", EXIT_USAGE, "--attend works in mode sparse only"),
    (["chat", "--kv", "sparse", "--attend", "0", "-p", "x"], "", EXIT_USAGE, "a share of the context such as 12.5%, or a number"),
    (["chat", "--kv", "sparse", "--attend", "10%", "-p", "x"], "", EXIT_USAGE, "the sketch is b3; use --resolution, or --sketch none"),
    (["chat", "--kv", "sparse", "--resolution", "0.5", "-p", "x"], "", EXIT_USAGE, r"it must be a number from 1 to 1e\+09, such as 2000"),
    (["chat", "--kv", "sparse", "--coverage", "95%", "-p", "x"], "", EXIT_USAGE, "No such option '--coverage'"),
    (["chat", "--kv", "sparse", "--policy", "ema+luck", "-p", "x"], "", EXIT_USAGE, "no policy 'luck'; choose one of: ema"),
    (["chat", "--kv", "sparse", "--prefetch", "x", "-p", "x"], "", EXIT_USAGE, "no prefetch 'x'"),
    (["chat", "--kv", "sparse", "--kv-budget", "100", "-p", "x"], "", EXIT_USAGE, "one page of this model takes 4,096"),
    (["chat", "--page-tokens", "17", "-p", "x"], "", EXIT_USAGE, "a multiple of 16"),
    (["chat", "none.gguf", "-p", "x"], "", EXIT_MODEL, "there is no file none.gguf"),
    (["chat", "-p", "x", "--ctx", "100000000"], "", EXIT_DOES_NOT_FIT, "use --ctx 8192 or less"),
    (["chat", "--ctx", "256"], "word " * 500, EXIT_RUNTIME, r"tokens and the context holds 256: .* --ctx 1024 or more"),
    (["serve", "--host", "1.2.3.4"], "", EXIT_USAGE, "not an address of this machine"),
    (["serve", "--", "--no-such-option"], "", EXIT_USAGE, "--no-such-option"),
    (["nonsense"], "", EXIT_USAGE, "No such command"),
])
def test_mistakes_get_a_sentence(edgekv, default_model, arguments, stdin, code, sentence):
    result = edgekv(*arguments, stdin=stdin)
    assert result.returncode == code and re.search(sentence, result.stderr), result.stderr
    assert not result.stdout and "Traceback" not in result.stderr


def test_version(edgekv):
    assert re.fullmatch(r"edgekv \d+\.\d+.*\n", edgekv("--version").stdout)


def test_a_reader_that_leaves(environment, default_model):
    command = [*EDGEKV, "chat", "-p", "Tell me a story.", "--temp", "0", "-n", "40", "--ctx", "256"]
    result = subprocess.run(
        ["bash", "-c", '"$0" "$@" | head -c 1; exit ${PIPESTATUS[0]}', *command],
        env=environment, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=120, check=False,
    )
    assert result.returncode == EXIT_RUNTIME and "Traceback" not in result.stderr and "Exception" not in result.stderr


# ---- the whole, through a terminal ------------------------------------------------------------------------------------------


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

    def until(self, pattern: str, timeout: float = 90) -> str:
        """What was shown since the last call, up to and with `pattern`."""
        end = time.monotonic() + timeout
        while True:
            shown = CONTROL.sub("", self._raw)
            if match := re.compile(pattern, re.DOTALL).search(shown, self._seen):
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

    def ends(self) -> int:
        self.child.expect(pexpect.EOF, timeout=60)
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def screen(environment, default_model) -> Iterator[Callable[..., Screen]]:
    opened: list[Screen] = []

    def start(*arguments: str, **variables: str) -> Screen:
        opened.append(Screen({**environment, **variables}, *arguments))
        opened[-1].until("Ctrl-D leaves")
        return opened[-1]

    yield start
    for one in opened:
        one.child.close(force=True)


ENDLESS = "Write a very long story about a river.\r"


def test_a_session(screen, tmp_path):
    chat = screen("--kv", "exact", "--ctx", "1024", "--temp", "0", "-n", "12", "-s", "Be brief.", NO_COLOR="1")
    chat.type("Say hello.\r")
    footer = chat.until(r"decode [\d.]+ t/s")
    assert re.search(r"context \d+/1,024 · KV exact [\d.]+ KiB of 22.5 MiB", footer)
    chat.type("/hlep\r")
    chat.until("did you mean /help")
    chat.type("first\\\rsecond\x1b\rthird\r")  # both ways to start a new line
    chat.until(r"decode [\d.]+ t/s")
    chat.type(f"/save {tmp_path}/talk.json\r")
    chat.until("saved 5 messages")
    messages = json.loads((tmp_path / "talk.json").read_text())
    assert messages[0] == {"role": "system", "content": "Be brief."} and messages[3]["content"] == "first\nsecond\nthird"
    chat.type("/undo\r")
    chat.until("taken back: first")
    chat.type("/regen\r")
    chat.until(r"decode [\d.]+ t/s")
    chat.type("/stats\r")
    chat.until("30 served by our kernel")
    chat.type("/memory\r")
    chat.until(r"home +22.5 MiB .* of 1,024 tokens")
    chat.type("/pin last\r")
    chat.until("mode exact attends every message whole, so there is nothing to pin")
    (tmp_path / "fact.txt").write_text("The sky is green.")
    chat.type(f"/read {tmp_path}/fact.txt\r")
    chat.until("17 characters")
    chat.type("/clear\r")
    chat.until("new conversation")
    chat.type(f"/load {tmp_path}/talk.json\r")
    chat.until("loaded 5 messages")
    chat.type("/system\r")
    chat.until("Be brief.")
    chat.type("/exit\r")
    assert chat.ends() == EXIT_OK
    history = (tmp_path / "state" / "edgekv" / "chat_history").read_text()
    assert "+Say hello." in history and "+second" in history


def test_a_session_in_mode_sparse(screen, tmp_path):
    import pydoc_data.topics

    (tmp_path / "long.txt").write_text("\n".join(pydoc_data.topics.topics.values())[:6000])
    chat = screen("--kv", "sparse", "--resolution", "1000", "--ctx", "2048", "--temp", "0", "-n", "48", "-s", "Be brief.",
                  NO_COLOR="1", EDGEKV_KV_BUDGET="1MiB")
    chat.type(f"/read {tmp_path}/long.txt\r")
    chat.until("6,000 characters")
    chat.type("Summarise.\r")
    footer = chat.until(r"decode [\d.]+ t/s")
    reads = re.search(r"KV sparse reads (\d+) of ([\d,]+) tokens a head, error ~([\d.]+) % · arena [\d.]+ (\w+ )?of 1.0 MiB, hit \d+ %",
                      footer)
    assert 100 < int(reads[1]) < 600 and 1000 < int(reads[2].replace(",", "")) < 2048 and 0 < float(reads[3]) < 50, footer
    chat.type("/pin last\r")
    shown = chat.until(r"2\s+assistant: .*\(pinned, tokens [\d,]+ to [\d,]+\)")
    assert re.search(r"system: Be brief\.  \(pinned, tokens \d+ to \d+\)", shown)
    chat.type("/regen\r")
    chat.until(r"decode [\d.]+ t/s")
    chat.type("/pin\r")
    assert "pinned" not in chat.until(r"2\s+assistant: .*\n>").split("assistant")[1], "another answer is another message"
    chat.type("/pin 7\r")
    chat.until("use 1 to 2, last or system")
    chat.type("/unpin\r")
    chat.until("nothing is pinned")
    chat.type("/memory\r")
    shown = chat.until("copies failed")
    for expected in (r"arena +1.0 MiB", r"home +45.0 MiB", r"sketches +4.6 MiB +b3", r"in the arena +\d+ ",
                     r"only at home +[\d,]+ ", r"reads +\d+ of [\d,]+ tokens a head: [\d.]+ %, of these [\d.]+ % for certain",
                     r"error +~[\d.]+ % of", r"arena hits +[\d.]+ % of the tokens read, [\d.]+ % of"):
        assert re.search(expected, shown), shown
    chat.type("/exit\r")
    assert chat.ends() == EXIT_OK


def test_ctrl_c_stops_the_answer_only(screen):
    chat = screen("--ctx", "2048", "--temp", "0")
    chat.type(ENDLESS)
    chat.until(r"river\.[^\n]*\n\s*([\w'-]+[ ,.]+){4}")
    chat.child.sendintr()
    chat.until("stopped by you")
    chat.type("/stats\r")
    chat.until(r"messages\s+2")
    chat.type("Say hello.\r")
    chat.until(r"hello\.[^\n]*\n\s*\w+")
    chat.child.sendintr()
    chat.until("t/s")
    chat.until(r"\n>")
    chat.type("\x04")
    assert chat.ends() == EXIT_OK


def test_ctrl_c_while_the_prompt_is_read(screen, tmp_path):
    import pydoc_data.topics

    (tmp_path / "long.txt").write_text("\n".join(pydoc_data.topics.topics.values())[:25000])
    chat = screen("--temp", "0", "-n", "8")
    chat.type(f"/read {tmp_path}/long.txt\r")
    chat.until("25,000 characters")
    chat.type("Summarise.\r")
    chat.until(r"reading.*/[\d,]+ tokens")
    chat.child.sendintr()
    chat.until("stopped before the answer began; nothing is lost")
    chat.until(r"\[long.txt\] > Summarise\.")
    chat.child.sendintr()  # clears the line
    chat.until("Ctrl-C again or Ctrl-D leaves.*\n.*>")
    chat.type("/undo\r")
    chat.until("taken back: long.txt")
    chat.type("Say hello.\r")
    chat.until(r"decode [\d.]+ t/s")
    chat.until(r"\n>")
    chat.child.sendintr()
    chat.until("Ctrl-C again.*\n>")
    chat.child.sendintr()
    assert chat.ends() == EXIT_OK


def test_a_prompt_that_does_not_fit_is_kept(screen):
    chat = screen("--ctx", "256", "-n", "4")
    chat.type("word " * 300 + "end\r")
    chat.until(r"the context holds 256.*it is kept.*--ctx 1024")
    chat.until("end")
    chat.type("\x01\x0b" + "Say hello.\r")
    chat.until(r"context \d+/256")
    chat.type("\x04")
    assert chat.ends() == EXIT_OK


def test_an_unwritable_history_is_said(screen, tmp_path, environment):
    (tmp_path / "state").write_text("not a folder")
    chat = screen("--ctx", "256")
    chat.until("the history is not kept")
    chat.type("\x04")
    assert chat.ends() == EXIT_OK


def test_ctrl_c_in_one_shot(environment, default_model):
    chat = Screen(environment, "-p", ENDLESS, "--temp", "0")
    chat.until(r"([\w'-]+[ ,.]+){4}")
    chat.child.sendintr()
    assert chat.ends() == EXIT_INTERRUPTED


# ---- serve ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "at_birth"), [
    (signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.SIG_DFL), (signal.SIGINT, signal.SIG_IGN)], ids=str)
def test_serve(environment, edgekv, default_model, number, at_birth):
    """at_birth: a script that starts it with & has it ignore SIGINT."""
    server = subprocess.Popen(
        [*EDGEKV, "serve", "--port", "0", "--ctx", "512", "--alias", "smol", "--", "--metrics"],
        env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, at_birth),  # noqa: PLW1509 (as a shell does it; no thread runs yet)
    )
    try:
        announced, example = server.stderr.readline(), server.stderr.readline()
        url = re.search(r"serving smol at (http://127.0.0.1:\d+/v1) \(512 tokens of context, KV (?:exact|sparse: resolution 2,000, .*)\)", announced)[1]
        python = re.match(r"try: \S+ -c '(.*)'$", example)[1]
        assert url in python
        answer = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=120, check=True)
        assert answer.stdout.strip()
        port = url.split(":")[2].split("/")[0]
        second = edgekv("serve", "--port", port)
        assert second.returncode == EXIT_USAGE and f"port {port} on 127.0.0.1 is in use" in second.stderr
        server.send_signal(number)
        out, err = server.communicate(timeout=60)
        assert (server.returncode, out, err) == (EXIT_OK, "", "stopping\n")
    finally:
        server.kill()
        server.wait()


def test_serve_says_what_mode_sparse_has(environment, default_model):
    server = subprocess.Popen([*EDGEKV, "serve", "--port", "0", "--ctx", "1024", "--kv-budget", "2MiB", "--slots", "2"],
                              env={**environment, "EDGEKV_KV": "sparse", "EDGEKV_RESOLUTION": "16000"}, stderr=subprocess.PIPE,
                              text=True)
    try:
        assert "(1,024 tokens of context for each of 2 slots, KV sparse: resolution 16,000, arena 2.0 MiB, cache 1.0 GiB of RAM)" in server.stderr.readline()
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == EXIT_OK
    finally:
        server.kill()
        server.wait()


def test_serve_lists_the_options_of_the_server_below(edgekv):
    result = edgekv("serve", "--", "--help")
    assert result.returncode == EXIT_OK and "--slot-save-path" in result.stdout
