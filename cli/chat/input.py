"""The prompt: line editing, history, several lines, and the keys that clear the line or leave."""

from collections.abc import Callable, Mapping
from contextlib import suppress

from platformdirs import user_state_path
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from edgekv.common.errors import EdgeKVError

FILE_COMMANDS = ("/read ", "/save ", "/load ")
CHATS_COMMAND = "/chats "
_PLACEHOLDER = "Send a message (/help for commands)"


class ChatInput:
    """Reads messages from the terminal; `note` shows a line beside the conversation."""

    def __init__(self, commands: Mapping[str, str], note: Callable[[str], None], styled: bool, chats: Callable[[], list[str]] = list):
        """commands: what each does. chats(): the names of kept conversations."""
        self._note, self._styled = note, styled
        history, problem = _history()
        if problem:
            note(problem)
        self._session: PromptSession[str] = PromptSession(
            history=history, multiline=True, key_bindings=_keys(), completer=_Commands(commands, chats), complete_while_typing=False,
            prompt_continuation=lambda width, *_: " " * width, enable_history_search=False,
        )
        self._session.app.ttimeoutlen = 0.1  # a lone Escape acts soon
        self._armed = False  # Ctrl-C was pressed on an empty line

    def read(self, prompt: str, text: str = "") -> str | None:
        """The next message; `text` is typed already. None: the person leaves. Never raises KeyboardInterrupt."""
        while True:
            try:
                message = self._session.prompt(FormattedText([("bold" if self._styled else "", prompt)]), default=text,
                                               placeholder=FormattedText([("ansibrightblack" if self._styled else "", _PLACEHOLDER)]))
            except EOFError:
                return None
            except KeyboardInterrupt:
                was_empty, text = not self._session.default_buffer.text, ""
                if was_empty and self._armed:
                    return None
                self._armed = True
                try:
                    self._note("Ctrl-C again or Ctrl-D leaves")
                except KeyboardInterrupt:  # again, before the prompt was back
                    return None
                continue
            self._armed = False
            if message.strip():
                return message
            text = ""


class _Commands(Completer):
    """Completes commands, files after the commands that take one, and conversations after /chats."""

    def __init__(self, commands: Mapping[str, str], chats: Callable[[], list[str]]):
        self._commands, self._chats = commands, chats
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event):
        line = document.text_before_cursor
        for command in FILE_COMMANDS:
            if line.startswith(command):
                rest = line[len(command):].lstrip()
                yield from self._paths.get_completions(Document(rest, len(rest)), complete_event)
                return
        if line.startswith(CHATS_COMMAND):
            begun = line[len(CHATS_COMMAND):].lstrip().removeprefix("rm ").lstrip()
            with suppress(EdgeKVError):  # a folder that cannot be read
                yield from (Completion(name, start_position=-len(begun)) for name in self._chats() if name.startswith(begun))
            return
        if line.startswith("/") and " " not in line:
            for command, what in self._commands.items():
                if command.startswith(line):
                    yield Completion(command, start_position=-len(line), display_meta=what)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.apply_completion(buffer.complete_state.current_completion)
        elif buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _history() -> tuple[History, str | None]:
    path = user_state_path("edgekv") / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with path.open("ab"):
            pass
        return FileHistory(path), None
    except OSError as error:
        return InMemoryHistory(), f"the history is not kept: {path} cannot be written ({error.strerror})"
