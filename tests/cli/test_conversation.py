"""The chat's side of a conversation, against a server made of paper."""


import pytest
from support.paper import DONE, TIMINGS, interrupt_at, refuse, roles, say, text

from edgekv.cli.chat.client import AnswerPiece, Progress, Timings
from edgekv.cli.chat.session import ChatAnswer, Conversation
from edgekv.common.errors import ContextOverflow, EdgeKVError


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
