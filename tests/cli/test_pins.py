"""Pinned messages: where their tokens stand, and how pins follow the conversation."""

import pytest

from edgekv.cli.chat.client import Usage
from edgekv.cli.chat.pinned_messages import Pins, message_span, moved
from edgekv.cli.chat.session import Conversation
from edgekv.cli.chat.views import pin_only
from edgekv.common.errors import EdgeKVError


class PaperTemplate:
    """A client whose tokens are characters, and whose template marks roles and trims contents."""

    def prompt(self, messages: list[dict[str, str]]) -> str:
        return "".join(f"<{m['role'][0]}>{m['content'].strip()}</>" for m in messages) + "<a>"

    def n_tokens(self, text: str) -> int:
        return 1 + len(text)  # one at the beginning


class PaperRuntime:
    def __init__(self, n_positions: int):
        self.n_positions = n_positions
        self.pins: list[tuple[int, int]] = []

    def unpin_all(self) -> None:
        self.pins.clear()

    def pin(self, first: int, last: int, ahead: bool) -> int:
        assert ahead
        self.pins.append((first, last))
        return max(0, min(last + 1, self.n_positions) - first)


class PaperServer:
    def __init__(self, n_positions: int):
        self.runtime = PaperRuntime(n_positions)

    def pin(self, spans: list[tuple[int, int]]) -> list[tuple[int, int] | None]:
        return pin_only(self.runtime, spans)


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
    conversation, server = pinned._conversation, PaperServer(1000)
    runtime = server.runtime
    assert list(pinned.apply(server)) == [0], "the system prompt is pinned from the start"
    pinned.add("3")
    pinned.add("last")
    before = pinned.apply(server)
    assert list(before) == [0, 3, 4] and runtime.pins == list(before.values())
    conversation.turns[-1] = {"role": "assistant", "content": "anew"}  # as /regen does
    assert list(pinned.apply(server)) == [0, 3] and runtime.pins == list(before.values())[:2]
    short = PaperServer(before[3][0] + 1)  # some of the message's tokens have not come yet
    assert pinned.apply(short)[3] == (before[3][0],) * 2 and pinned.apply(PaperServer(5)) == {0: (4, 4), 3: None}
    pinned.clear()
    assert pinned.apply(server) == {} and runtime.pins == []


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


def test_pins_are_kept_with_the_conversation(pinned, tmp_path):
    conversation, path = pinned._conversation, tmp_path / "chat.json"
    pinned.add("3")
    for system in (True, False):
        conversation.system_pinned = system
        conversation.save(path)
        other = Conversation(PaperTemplate(), system="other")
        other.load(path)
        assert list(Pins(other).apply(PaperServer(1000))) == [0, 3][0 if system else 1:], "and not message 1, which says the same"
        assert all(set(message) == {"role", "content"} for message in other.messages), "a server gets nothing else"


def test_spans_move_with_what_left_and_what_came_back():
    """200 tokens left behind a system prompt of 50; 60 of them came back before the message at 400."""
    told = {"left": {"n": 200, "ranges": [[50, 200]]}, "back": {"n": 60, "ranges": [[100, 40], [180, 20]], "before": 400}}
    usage = Usage.parse({"prompt_tokens": 300, "completion_tokens": 5, "edgekv": told})
    assert usage is not None and usage.n_left == 200 and usage.n_back == 60
    assert moved((10, 20), usage) == (10, 20) and moved((300, 320), usage) == (100, 120), "before the message nothing but the gap counts"
    assert moved((410, 420), usage) == (270, 280)
