"""The pinned messages of a conversation, and the positions of their tokens in the context."""

from __future__ import annotations

from os.path import commonprefix
from typing import TYPE_CHECKING

from edgekv.cli.chat.client import ChatClient, Message, Usage
from edgekv.common.errors import EdgeKVError

if TYPE_CHECKING:
    from edgekv.cli.chat.session import Conversation
    from edgekv.cli.chat.views import ServerView, Span

SYSTEM = "system"

_OTHER = "\N{REPLACEMENT CHARACTER}"
_QUESTION: Message = {"role": "user", "content": "?"}


def message_span(client: ChatClient, messages: list[Message], index: int) -> tuple[int, int] | None:
    """(first, last) position of message `index`'s content in the next prompt; None if the template leaves it out.

    A template is a program: its output for a message may depend on all others. So all messages are rendered twice, once with another content
    in this place; the content is where the two texts differ.
    """
    if messages[-1]["role"] != "user":
        messages = [*messages, _QUESTION]  # the template would leave an answer at the end open
    other = [*messages[:index], {**messages[index], "content": _OTHER}, *messages[index + 1:]]
    prompt, changed = client.prompt(messages), client.prompt(other)
    start = len(commonprefix([prompt, changed]))  # noqa: RUF071 (of text, character by character)
    n_after = len(commonprefix([prompt[start:][::-1], changed[start:][::-1]]))  # noqa: RUF071 (of text)
    end = len(prompt) - n_after
    if end <= start:
        return None
    first, n = client.n_tokens(prompt[:start]), client.n_tokens(prompt[:end])
    return first, max(first, n - 1)


def moved(span: tuple[int, int], usage: Usage) -> tuple[int, int]:
    """A span of the whole conversation, where some of its tokens are no longer in the context, and others came back before a message."""
    n_before = sum(n for first, n in usage.left if first <= span[0]) - (usage.n_back if span[0] >= usage.back_before else 0)
    return span[0] - n_before, span[1] - n_before


class Pins:
    """The pinned messages of a conversation. They stay pinned while they are part of it; the system message is pinned from the start."""

    def __init__(self, conversation: Conversation):
        self._conversation = conversation

    def add(self, which: str) -> None:
        """Pin message `which`: a number, "last" or "system". Raises EdgeKVError if there is none."""
        if which == SYSTEM:
            if self._conversation.system is None:
                raise EdgeKVError("there is no system prompt to pin; /system TEXT sets one")
            self._conversation.system_pinned = True
            return
        turns = self._conversation.turns
        if not turns:
            raise EdgeKVError("there is no message to pin yet")
        number = str(len(turns)) if which == "last" else which
        if not number.isdecimal() or not 1 <= int(number) <= len(turns):
            raise EdgeKVError(f"there is no message {which}; use 1 to {len(turns)}, last or system (/pin lists them)")
        message = turns[int(number) - 1]
        if not self.holds(message):
            self._conversation.pinned.append(message)

    def clear(self) -> None:
        self._conversation.system_pinned, self._conversation.pinned = False, []

    def holds(self, message: Message) -> bool:
        if message["role"] == SYSTEM:
            return self._conversation.system_pinned
        return self._conversation.is_pinned(message)

    def apply(self, server: ServerView) -> dict[int, Span | None]:
        """Pin these messages in the server's cache, also those whose tokens are still to come. Returns each pinned message's span by its index
        in the conversation; None: its tokens are not in the context yet."""
        conversation = self._conversation
        conversation.pinned = [message for message in conversation.pinned if any(message is turn for turn in conversation.turns)]
        wanted = {index: message_span(conversation.client, conversation.messages, index)
                  for index, message in enumerate(conversation.messages) if self.holds(message)}
        usage = conversation.last.usage if conversation.last is not None else None
        spans = {index: span if usage is None else moved(span, usage) for index, span in wanted.items() if span is not None}
        return {**dict.fromkeys(wanted), **dict(zip(spans, server.pin(list(spans.values()))))}
