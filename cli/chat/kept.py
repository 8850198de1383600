"""Conversations that are kept automatically: one file each, named after their first words."""

from __future__ import annotations

import difflib
import re
import secrets
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from platformdirs import user_data_path

from edgekv.cli.chat.saved import read_records, write_messages
from edgekv.cli.chat.session import Conversation
from edgekv.common.errors import EdgeKVError

if TYPE_CHECKING:
    from edgekv.cli.chat.views import ServerView

_ENDING = ".json"
_NAME_WORDS, _NAME_LETTERS = 5, 40
_FIRST_LETTERS = 60
_MOST_LISTED = 5
_NOT_NAMES = ("", "rm")  # /chats takes "rm" as a command
_TOKENS = "tokens"  # key of the last message: tokens in the context after it
_ID = "conversation"  # key of the first message: the id under which its K and V are kept
_ID_LETTERS = re.compile(r"[0-9a-f]{16}")


def kept_folder() -> Path:
    return user_data_path("edgekv") / "chats"


class Entry(Struct, frozen=True):
    """One kept conversation. n_tokens: in its context after the last answer; None: unknown."""

    name: str
    n_turns: int
    n_tokens: int | None
    when: datetime
    first: str


class KeptChats:
    """The folder of kept conversations."""

    def __init__(self, folder: Path):
        self.folder = folder

    def names(self) -> list[str]:
        """Names of the conversations, newest first."""
        try:
            found = [(stamp, path.name) for path in self.folder.iterdir() if _is_kept(path) and (stamp := _stamp(path)) is not None]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise EdgeKVError(f"{self.folder} cannot be read: {error.strerror or error}") from None
        return [name.removesuffix(_ENDING) for _, name in sorted(found, reverse=True)]

    def newest(self) -> str:
        """The newest name. Raises EdgeKVError if nothing is kept."""
        names = self.names()
        if not names:
            raise EdgeKVError(f"no conversation is kept yet in {self.folder}; leave --resume out")
        return names[0]

    def entries(self) -> tuple[list[Entry], list[str]]:
        """The conversations, newest first, and a sentence for each file that is none."""
        entries, problems = [], []
        for name in self.names():
            path = self.folder / f"{name}{_ENDING}"
            try:
                entries.append(_entry(name, read_records(path), path.stat().st_mtime))
            except OSError:  # removed meanwhile
                continue
            except EdgeKVError as error:
                problems.append(str(error))
        return entries, problems

    def path(self, name: str, otherwise: str = "") -> Path:
        """The file of a conversation. Raises EdgeKVError if there is none of this name. otherwise: what the person can do where no name is near."""
        names = self.names()
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            raise EdgeKVError(f"no conversation is kept as {name}; " + (f"did you mean {near[0]}?" if near else _listed(names) + otherwise))
        return self.folder / f"{name}{_ENDING}"

    def id_of(self, name: str) -> str | None:
        """The id under which its K and V are kept; None: it has none. Raises EdgeKVError if the file is missing or damaged."""
        found = next(iter(read_records(self.path(name))), {}).get(_ID)
        return found if isinstance(found, str) and _ID_LETTERS.fullmatch(found) else None

    def remove(self, name: str, rows: ServerView) -> None:
        """Remove a conversation with its K and V. Raises EdgeKVError."""
        path = self.path(name)
        try:
            conversation = self.id_of(name)
        except EdgeKVError:  # a damaged one goes too
            conversation = None
        if conversation is not None:
            rows.forget(conversation)
        try:
            path.unlink()
        except OSError as error:
            raise EdgeKVError(f"{path} cannot be removed: {error.strerror or error}") from None

    def add(self, messages: list[dict[str, Any]]) -> Path:
        """Write a new conversation under a new name. Raises EdgeKVError if it cannot be written."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EdgeKVError(f"{self.folder} cannot be made: {error.strerror or error}") from None
        words = name_from(next((message["content"] for message in messages if message["role"] == "user"), ""))
        number = 1
        while True:
            name = words if number == 1 else f"{words}-{number}"
            path = self.folder / f"{name}{_ENDING}"
            number += 1
            if name in _NOT_NAMES or path.exists():
                continue
            try:
                write_messages(path, messages, new=True)
            except FileExistsError:  # another chat was quicker
                continue
            return path


class Keeper:
    """Writes one conversation after each turn, where it is to be kept."""

    def __init__(self, conversation: Conversation, kept: KeptChats, rows: ServerView, keeping: bool = True):
        self.kept = kept
        self.conversation, self.keeping = conversation, keeping
        self._rows = rows
        self._path: Path | None = None
        self._seen: tuple[int, int] | None = None
        self._go_on(None)

    def _go_on(self, conversation: str | None) -> None:
        self._id = conversation or secrets.token_hex(8)
        if self.keeping:
            self._rows.converse(self._id)

    @property
    def name(self) -> str | None:
        """The conversation's name; None before the first answer, and where nothing is kept."""
        return None if self._path is None else self._path.name.removesuffix(_ENDING)

    def open(self, name: str) -> int:
        """Resume a kept conversation; returns the number of its messages. Raises EdgeKVError if the file is missing or damaged."""
        path = self.kept.path(name)
        seen = _stamp(path)
        n_messages = self.conversation.load(path)
        self._path, self._seen = path, seen
        self._go_on(self.kept.id_of(name))
        return n_messages

    def begin(self) -> None:
        """Begin another conversation, with a new name."""
        self._path = self._seen = None
        self._go_on(None)

    def keep(self) -> None:
        """Write the present conversation. Where another chat has written the file since, that one keeps it and this one gets a new name. Raises
        EdgeKVError if it cannot be written."""
        if not self.keeping:
            return
        if self._path is not None and _stamp(self._path) != self._seen:
            self.begin()
        if not self.conversation.turns:
            if self._path is not None:
                self.kept.remove(self._path.name.removesuffix(_ENDING), self._rows)
            self.begin()
            return
        records = _records(self.conversation)
        records[0][_ID] = self._id
        if self._path is None:
            self._path = self.kept.add(records)
        else:
            write_messages(self._path, records)
        self._seen = _stamp(self._path)


def _listed(names: list[str]) -> str:
    if not names:
        return "none is kept yet"
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"kept are {', '.join(names[:_MOST_LISTED])}{more}"


def name_from(text: str) -> str:
    """A file name from the first words of a text: letters and digits of any script, in lower case, words joined by dashes."""
    words = re.findall(r"[^\W_]+", text.lower())[:_NAME_WORDS]
    while len(words) > 1 and len("-".join(words)) > _NAME_LETTERS:
        words.pop()
    return "-".join(words)[:_NAME_LETTERS] or "chat"


def _is_kept(path: Path) -> bool:
    return path.name.endswith(_ENDING) and not path.name.startswith(".") and path.is_file()


def _stamp(path: Path) -> tuple[int, int] | None:
    """A stamp that changes when somebody writes the file; None: there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _records(conversation: Conversation) -> list[dict[str, Any]]:
    records = conversation.records
    timings = None if conversation.last is None else conversation.last.timings
    if timings is not None and conversation.last is not None and conversation.last.text == records[-1]["content"]:
        records[-1][_TOKENS] = timings.n_context
    return records


def _entry(name: str, records: list[dict[str, Any]], modified: float) -> Entry:
    n_tokens = records[-1].get(_TOKENS) if records else None
    first = " ".join(next((record["content"] for record in records if record["role"] == "user"), "").split())
    return Entry(
        name, sum(record["role"] == "user" for record in records), n_tokens if isinstance(n_tokens, int) else None,
        datetime.fromtimestamp(modified), first if len(first) <= _FIRST_LETTERS else f"{first[:_FIRST_LETTERS]}...",
    )
