"""The chat's side of a conversation, against a server made of paper; conversations that are kept, and come back: `--resume` and `/chats`."""


import json
import os
import re
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paper import DONE, TIMINGS, PaperServer, interrupt_at, refuse, roles, say, says, text
from support.program import EDGEKV

from edgekv.cli.chat.client import AnswerPiece, Progress, Timings
from edgekv.cli.chat.kept import Keeper, KeptChats, name_from
from edgekv.cli.chat.session import ChatAnswer, Conversation
from edgekv.common.errors import EXIT_OK, EXIT_RUNTIME, ContextOverflow, EdgeKVError


def test_an_answer_in_pieces(paper, conversation):
    paper.script = [[
        text("", prompt_progress={"total": 13, "cache": 3, "processed": 8, "time_ms": 9}),
        ": a comment, as the server sends while it is busy\n\n",
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        text("Hel"), text("lo [bold]x[/bold]"), text("", finish_reason="stop", timings=TIMINGS), DONE,
    ]]
    pieces: list[AnswerPiece] = []
    answer = say(conversation, "hi", pieces.append)
    assert answer == ChatAnswer("Hello [bold]x[/bold]", Timings(3, 10, 50.0, 5, 100.0), False, "stop")
    assert pieces[0].progress == Progress(13, 3, 8) and pieces[1].thought == "hm"
    assert answer.timings.n_context == 18 and answer.timings.prefill_tps == 200 and answer.timings.decode_tps == 40
    sent = paper.requests[0]
    assert sent["temperature"] == 0.0 and sent["stream"] and sent["return_progress"]
    assert sent["messages"] == [{"role": "system", "content": "be nice"}, {"role": "user", "content": "hi"}]
    assert roles(conversation) == "sua" and not conversation.draft.content


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


# ---- files ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path) -> KeptChats:
    return KeptChats(tmp_path / "data" / "chats")


def said(*words: str, system: str | None = None, n_context: int | None = None) -> Conversation:
    """A conversation of these questions and answers, in turns."""
    conversation = Conversation(None, system)
    conversation.turns = [{"role": ("user", "assistant")[i % 2], "content": word} for i, word in enumerate(words)]
    if n_context is not None:
        conversation.last = ChatAnswer(words[-1], Timings(0, n_context - 1, 1.0, 1, 1.0), False, "stop")
    return conversation


class Rows:
    """A keeper of K and V that notes the calls."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def converse(self, conversation: str) -> None:
        self.said.append(("converse", conversation))

    def forget(self, conversation: str) -> None:
        self.said.append(("forget", conversation))


def keep(kept: KeptChats, *words: str, **more: object) -> Keeper:
    keeper = Keeper(said(*words, **more), kept, Rows())
    keeper.keep()
    return keeper


@pytest.mark.parametrize(("text", "name"), [
    ("What is a KV cache?", "what-is-a-kv-cache"), ("  Ärger mit Öl: 3 Fässer, und noch mehr", "ärger-mit-öl-3-fässer"),
    ("../../etc/passwd", "etc-passwd"), ("a.b_c\nd", "a-b-c-d"), ("?!", "chat"), ("", "chat"), ("漢字のテスト", "漢字のテスト"),
    ("x" * 300, "x" * 40), ("word " * 3 + "y" * 40, "word-word-word"),
])
def test_names(text, name):
    assert name_from(text) == name


def test_names_are_unique(kept):
    names = [keep(kept, "Hello there", str(i)).name for i in range(3)]
    assert names == ["hello-there", "hello-there-2", "hello-there-3"]
    assert keep(kept, "rm", "x").name == "rm-2", "/chats rm is a command"


def test_the_newest_first(kept):
    for number, word in enumerate(("one", "two", "three")):
        keep(kept, word, "x")
        os.utime(kept.path(word), (number, 100 - number))
    assert kept.names() == ["one", "two", "three"] and kept.newest() == "one"


def test_two_chats_with_one_conversation_lose_nothing(kept):
    first = keep(kept, "one", "x")
    second = Keeper(Conversation(None), kept, Rows())
    second.open("one")
    for keeper, word in (first, "first"), (second, "second"):
        keeper.conversation.turns += said(word, "y").turns
        time.sleep(0.01)
        keeper.keep()
    assert (first.name, second.name) == ("one", "one-2")
    assert [[m["content"] for m in json.loads(kept.path(name).read_text())] for name in ("one", "one-2")] == [
        ["one", "x", "first", "y"], ["one", "x", "second", "y"]]


def test_a_name_that_another_takes_first(kept, monkeypatch):
    """Another process takes the name between the look and the writing."""
    keep(kept, "one", "x")
    looks = iter([False, True, False])
    real = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: next(looks) if path.parent == kept.folder else real(path))
    assert keep(kept, "one", "y").name == "one-3"
    monkeypatch.undo()
    assert json.loads(kept.path("one").read_text())[1]["content"] == "x" and len(list(kept.folder.iterdir())) == 2


def test_a_full_disk_changes_nothing(kept, monkeypatch):
    keeper = keep(kept, "one", "x")
    before = kept.path("one").read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    keeper.conversation.turns += said("two", "y").turns
    with pytest.raises(EdgeKVError, match="No space left on device; nothing was saved"):
        keeper.keep()
    assert kept.path("one").read_bytes() == before and len(list(kept.folder.iterdir())) == 1
    monkeypatch.undo()
    keeper.keep()
    assert len(json.loads(kept.path("one").read_text())) == 4


def test_k_and_v_are_kept_under_the_conversation_and_go_with_it(kept):
    first = Rows()
    keeper = Keeper(said("one", "x"), kept, first)
    keeper.keep()
    ((word, one),) = first.said
    assert word == "converse" and kept.id_of("one") == one

    later = Rows()
    again = Keeper(Conversation(None), kept, later)
    again.open("one")
    again.begin()
    assert [word for word, _ in later.said] == ["converse"] * 3 and later.said[1][1] == one and later.said[2][1] != one
    kept.remove("one", later)
    assert later.said[-1] == ("forget", one) and kept.names() == []


def test_a_conversation_of_before_is_removed_all_the_same(kept):
    keep(kept, "one", "x")
    path = kept.path("one")
    path.write_text(json.dumps([{"role": "user", "content": "one"}, {"role": "assistant", "content": "x"}]))
    rows = Rows()
    kept.remove("one", rows)
    assert not path.exists() and not rows.said
    path.write_text("{")
    kept.remove("one", rows)
    assert not path.exists()


def test_files_that_are_no_conversations(kept):
    keep(kept, "one", "x")
    (kept.folder / "bad.json").write_text("{")
    (kept.folder / "deep.json").write_text("[" * 100_000)
    (kept.folder / "notes.txt").write_text("mine")
    (kept.folder / ".one.json.tmp").write_text("half")
    entries, problems = kept.entries()
    assert [entry.name for entry in entries] == ["one"] and len(problems) == 2 and "is not a saved conversation" in problems[0]
    with pytest.raises(EdgeKVError, match="not JSON"):
        Keeper(Conversation(None), kept, Rows()).open("bad")


@pytest.mark.parametrize("name", ["nobody", "../one", "", "rm", "one.json"])
def test_names_that_are_not_there(kept, name):
    keep(kept, "one", "x")
    with pytest.raises(EdgeKVError, match=f"no conversation is kept as {re.escape(name)}; "):
        kept.path(name)
    with pytest.raises(EdgeKVError, match="no conversation is kept yet"):
        KeptChats(kept.folder / "none").newest()


# ---- the whole, with a server made of paper ---------------------------------------------------------------------------------

@pytest.fixture
def endpoint() -> Iterator[PaperServer]:
    server = PaperServer()
    server.script = [says(f"answer {number}", usage={"prompt_tokens": 100 * number, "completion_tokens": 5}) for number in range(1, 20)]
    yield server
    server.close()


@pytest.fixture
def environment(environment, tmp_path, endpoint) -> dict[str, str]:
    return environment | {"XDG_DATA_HOME": str(tmp_path / "data"), "NO_COLOR": "1", "EDGEKV_URL": endpoint.url}


def test_a_session_that_comes_back(terminal, endpoint, tmp_path):
    folder = tmp_path / "data" / "edgekv" / "chats"
    chat = terminal("-s", "Be brief.")
    chat.say("/chats", "no conversation is kept yet")
    chat.say("What is a cache?", "answer 1.*context 105")
    chat.say("And a page?", "answer 2.*context 205")
    chat.say("/clear", "new conversation")
    chat.say("Something else", "answer 3.*context 305")
    shown = chat.say("/chats", "What is a cache[^\n]*\n")
    assert re.search(r"something-else +1 +305 +\d{4}-\d\d-\d\d \d\d:\d\d +Something else", shown), shown
    assert re.search(r"what-is-a-cache +2 +205 +\d{4}-", shown), shown
    chat.say("/chats what-is-a-cash", "no conversation is kept as what-is-a-cash; did you mean what-is-a-cache")
    chat.say("/chats what-is-a-cache", "going on with what-is-a-cache, 5 messages")
    chat.say("/undo", "taken back: And a page")
    chat.say("/chats rm what-is-a-cache", "is the conversation that you are in")
    chat.say("/chats rm", "needs a name after it")
    chat.say("/chats rm something-else", "removed something-else")
    chat.say("/memory", "does not say what its memory holds")
    chat.say("/pin last", "a chat cannot pin messages")
    chat.leave("kept as what-is-a-cache; `edgekv chat --resume` goes on")
    assert [path.name for path in folder.iterdir()] == ["what-is-a-cache.json"], "no temporary file is left, and it was written again under its name"
    assert stat.S_IMODE((folder / "what-is-a-cache.json").stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    endpoint.requests.clear()
    again = terminal("--resume")
    again.until(r"going on with what-is-a-cache, 3 messages.*> What is a cache\?.*answer 1")
    again.say("More.", "answer 4")
    assert [message["content"] for message in endpoint.requests[0]["messages"]] == ["Be brief.", "What is a cache?", "answer 1", "More."]
    again.say("/undo", "taken back: More")
    again.say("/undo", "taken back: What is a cache")
    again.leave()
    assert not list(folder.iterdir()), "undone to the end"


def test_where_conversations_lie_is_said_once(terminal, tmp_path):
    first = terminal()
    said = "".join(first.say("hello", "answer 1").split())  # however its lines break
    assert "".join(f"conversations are kept in {tmp_path}/data/edgekv/chats, and their K and V in".split()) in said
    assert "/chatsrmNAMEdeletesone" in said
    first.leave("kept as hello")
    again = terminal()
    assert "conversations are kept in" not in again.say("hello", "answer 2")
    again.leave()


def test_a_chat_that_keeps_nothing(terminal, tmp_path):
    for arguments, variables in (("--no-keep",), {}), ((), {"EDGEKV_NO_KEEP": "1"}):
        chat = terminal(*arguments, **variables)
        chat.say("hello", "answer")
        chat.leave()
    assert not (tmp_path / "data").exists()


def test_a_conversation_that_cannot_be_kept_goes_on(terminal, tmp_path):
    (tmp_path / "data").write_text("not a folder")
    chat = terminal()
    chat.say("hello", "this conversation is not kept: .* cannot be made")
    assert "not kept" not in chat.say("more", r"answer 2.*t/s.*\n>"), "said once"
    chat.leave()


def test_one_question_goes_on_with_a_conversation(environment, endpoint, tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*EDGEKV, "chat", "-p", "and now?", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False,
                              stdin=subprocess.DEVNULL)

    kept = KeptChats(tmp_path / "data" / "edgekv" / "chats")
    for nothing in (run("--resume"), run("--resume", "nothere")):
        assert nothing.returncode == EXIT_RUNTIME and nothing.stderr.endswith("; leave --resume out\n")
    keep(kept, "one", "x", system="Be brief.")
    assert run("--resume", "one", "-s", "Be long.").stdout == "answer 1\n"
    assert [m["content"] for m in endpoint.requests[0]["messages"]] == ["Be long.", "one", "x", "and now?"]
    assert run("--resume").stdout == "answer 2\n" and kept.entries()[0][0].n_turns == 3
    assert run().returncode == EXIT_OK and kept.names() == ["one"] and kept.entries()[0][0].n_turns == 3
    missing = run("--resume", "onn")
    assert missing.returncode == EXIT_RUNTIME and "did you mean one?" in missing.stderr
