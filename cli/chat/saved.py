"""Conversations in files: a JSON list of messages, written completely or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgekv.common.errors import EdgeKVError

if TYPE_CHECKING:
    from edgekv.cli.chat.client import Message

_ROLES = ("system", "user", "assistant")


def read_text(path: Path) -> str:
    """A text file's content. Raises EdgeKVError with a sentence for any other file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise EdgeKVError(f"{path} cannot be read: {error.strerror or error}") from None
    if b"\0" in data:
        raise EdgeKVError(f"{path} is not a text file")
    return data.decode("utf-8", "replace")


def read_records(path: Path) -> list[dict[str, Any]]:
    """The messages in `path` with all their keys. Raises EdgeKVError for a file that is not a saved conversation."""
    problem = f"{path} is not a saved conversation"
    try:
        messages = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise EdgeKVError(f"{problem}: it is not JSON ({error.msg} in line {error.lineno})") from None
    except RecursionError:
        raise EdgeKVError(f"{problem}: it is nested too deeply") from None
    if not isinstance(messages, list):
        raise EdgeKVError(f"{problem}: it must be a list of messages")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or message.get("role") not in _ROLES or not isinstance(message.get("content"), str):
            raise EdgeKVError(f'{problem}: message {number} must be {{"role": one of {", ".join(_ROLES)}, "content": text}}')
    roles = [message["role"] for message in messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    if turns != ["user", "assistant"] * (len(turns) // 2):
        raise EdgeKVError(f"{problem}: after the system message, user and assistant must take turns and the assistant speak last")
    return messages


def write_messages(path: Path, messages: Sequence[Message | dict[str, Any]], new: bool = False) -> None:
    """Write the messages completely or not at all, readable by the owner only (0600).

    Raises EdgeKVError if the file cannot be written, FileExistsError if it must be `new` and exists.
    """
    path = path.resolve()  # a link stays a link
    text = json.dumps(messages, ensure_ascii=False, indent=1) + "\n"
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(text.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        if new:
            _move_new(temporary, path)
        else:
            os.replace(temporary, path)
    except FileExistsError:
        raise
    except OSError as error:
        raise EdgeKVError(f"{path} cannot be written: {error.strerror or error}; nothing was saved") from None
    finally:
        if temporary is not None:
            with suppress(OSError):  # it was renamed to the file
                temporary.unlink()


def _move_new(temporary: Path, path: Path) -> None:
    """Rename to a new path. Raises FileExistsError if `path` exists, also where another process was quicker."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(path) from None
        os.replace(temporary, path)
