"""A conversation's messages, also after an answer was cut, refused or taken back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from edgekv.cli.chat.saved import read_records, write_messages
from edgekv.common.errors import BrokenOff, EdgeKVError

if TYPE_CHECKING:
    from edgekv.cli.chat.client import AnswerPiece, ChatClient, Message, Timings, Usage

_PINNED = "pinned"  # key of a message


class Draft(Struct):
    """The next message: typed text, and files that go before it."""

    text: str = ""
    files: list[tuple[str, str]] = field(default_factory=list)  # (name, text)

    @property
    def content(self) -> str:
        return "\n\n".join([*(f"{name}:\n\n{text.rstrip()}" for name, text in self.files), *([self.text] if self.text else [])])


class ChatAnswer(Struct, frozen=True):
    """One turn's answer. interrupted: by the person; finish_reason: "length" where a limit cut it; broken: a sentence, where the server's stream
    ended before the answer."""

    text: str
    timings: Timings | None
    interrupted: bool
    finish_reason: str | None
    usage: Usage | None = None
    broken: str | None = None


class Conversation:
    """The messages so far, always alternating user and assistant after an optional system message."""

    def __init__(self, client: ChatClient, system: str | None = None):
        self.client = client
        self.system = system
        self.turns: list[Message] = []
        self.pinned: list[Message] = []
        """Pinned messages of the turns, compared by identity: two messages may have the same text."""
        self.system_pinned = True
        self.draft = Draft()
        self.last: ChatAnswer | None = None

    @property
    def messages(self) -> list[Message]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]

    def is_pinned(self, message: Message) -> bool:
        """Whether a message of the turns is."""
        return any(message is one for one in self.pinned)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The messages as files have them, with their pins."""
        records: list[dict[str, Any]] = [dict(message) for message in self.messages]
        if self.system and not self.system_pinned:
            records[0][_PINNED] = False
        for record, turn in zip(records[len(records) - len(self.turns):], self.turns):
            if self.is_pinned(turn):
                record[_PINNED] = True
        return records

    def send(self, show: Callable[[AnswerPiece], None]) -> ChatAnswer:
        """Send the draft and stream the answer into `show`.

        An answer that is interrupted or breaks off stays as far as it came. If there is none yet, or the prompt does not fit, the message goes back into
        the draft and the conversation is as before; ContextOverflow and EdgeKVError pass through.
        """
        return self._turn(show, [*self.turns, {"role": "user", "content": self.draft.content}], Draft())

    def regenerate(self, show: Callable[[AnswerPiece], None]) -> ChatAnswer:
        """Answer the last question again; the old answer stays if nothing new comes."""
        if not self.turns:
            raise EdgeKVError("there is no answer yet to make again")
        return self._turn(show, self.turns[:-1], self.draft)

    def undo(self) -> str:
        """Remove the draft's files, or else the last question and its answer; returns the file names or the question."""
        if self.draft.files:
            names = ", ".join(name for name, _ in self.draft.files)
            self.draft.files.clear()
            return names
        if not self.turns:
            raise EdgeKVError("there is nothing to undo")
        self.turns.pop()
        return self.turns.pop()["content"]

    def clear(self) -> None:
        self.turns, self.pinned, self.draft, self.last = [], [], Draft(), None

    def _turn(self, show: Callable[[AnswerPiece], None], turns: list[Message], draft: Draft) -> ChatAnswer:
        """The answer to these turns; what there was before comes back where there is none."""
        before = self.turns, self.draft
        try:
            self.turns, self.draft = turns, draft
            answer = self._answer(show)
        except BaseException:
            self.turns, self.draft = before
            raise
        if answer.interrupted and not answer.text:
            self.turns, self.draft = before
        return answer

    def _answer(self, show: Callable[[AnswerPiece], None]) -> ChatAnswer:
        texts: list[str] = []
        timings, reason, usage, interrupted, broken = None, None, None, False, None
        pinned = [i for i, message in enumerate(self.messages) if self.is_pinned(message)]
        pieces = self.client.stream(self.messages, pinned)
        try:
            for piece in pieces:
                if piece.text:
                    texts.append(piece.text)
                timings = piece.timings or timings
                reason = piece.finish_reason or reason
                usage = piece.usage or usage
                show(piece)
        except KeyboardInterrupt:
            interrupted = True
        except BrokenOff as error:
            if not texts:
                raise
            broken = f"{error}; what came of it stays"
        finally:
            pieces.close()  # type: ignore[attr-defined]  # a generator; ends the request, and with it the server's work
        self.last = ChatAnswer("".join(texts), timings, interrupted, reason, usage, broken)
        if self.last.text or not interrupted:
            self.turns.append({"role": "assistant", "content": self.last.text})
        return self.last

    def save(self, path: Path) -> int:
        """Write the messages as JSON, completely or not at all; returns their number.

        Raises EdgeKVError if the file cannot be written, or exists and is not a saved conversation.
        """
        if not self.turns:
            raise EdgeKVError("there is nothing to save yet")
        if path.exists():
            try:
                read_records(path)
            except EdgeKVError:
                raise EdgeKVError(f"{path} exists and is not a saved conversation; choose another name") from None
        write_messages(path, self.records)
        return len(self.messages)

    def load(self, path: Path) -> int:
        """Replace this conversation by the one saved in `path`; returns its number of messages."""
        records = read_records(path)
        messages: list[Message] = [{"role": record["role"], "content": record["content"]} for record in records]
        self.clear()
        self.system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
        self.system_pinned = self.system is None or records[0].get(_PINNED) is not False
        self.turns = messages[1:] if self.system is not None else messages
        self.pinned = [turn for turn, record in zip(self.turns, records[len(records) - len(self.turns):]) if record.get(_PINNED) is True]
        return len(messages)
