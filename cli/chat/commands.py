"""The slash commands of the chat. Each is a function of the session and the text after its name; its docstring is its help."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from edgekv.cli.chat.pinned_messages import SYSTEM
from edgekv.cli.chat.saved import read_text
from edgekv.cli.common.tables import NAME, Column, print_rows
from edgekv.common.errors import EdgeKVError

if TYPE_CHECKING:
    from edgekv.cli.chat.loop import ChatLoop

Command = Callable[["ChatLoop", str], None]

_CHATS = [
    Column("name", "name", right=False, rank=NAME), Column("n_turns", "turns"), Column("n_tokens", "tokens", "{:,}".format),
    Column("when", "when", "{:%Y-%m-%d %H:%M}".format), Column("first", "first words", right=False, rank=8, least=16),
]

COMMANDS: dict[str, tuple[str, Command]] = {}
"""Name with its slash: (its argument as help shows it, the function)."""


def words() -> dict[str, str]:
    """What each command does."""
    return {name: inspect.getdoc(command) or "" for name, (_, command) in COMMANDS.items()}


def run(loop: ChatLoop, line: str) -> None:
    """Run the command in `line`, which starts with a slash. Raises EdgeKVError with a sentence."""
    name, _, argument = line.strip().partition(" ")
    argument = argument.strip()
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        raise EdgeKVError(f"there is no command {name}; " + (f"did you mean {near[0]}?" if near else "/help lists them"))
    usage, command = COMMANDS[name]
    if argument and not usage:
        raise EdgeKVError(f"{name} takes nothing after it")
    if usage and not usage.startswith("[") and not argument:
        raise EdgeKVError(f"{name} needs a name after it: {name} {usage}")
    command(loop, argument)


def _command(usage: str = "") -> Callable[[Command], Command]:
    def register(function: Command) -> Command:
        COMMANDS["/" + function.__name__.strip("_")] = (usage, function)
        return function

    return register


@_command()
def help(loop: ChatLoop, _: str) -> None:  # noqa: A001 (its name is the command's)
    """Show this list."""
    shown = {command: f"{name} {usage}".rstrip() for name, (usage, command) in reversed(COMMANDS.items())}
    loop.renderer.table([
        *((name, inspect.getdoc(command) or "") for command, name in reversed(shown.items())),
        ("//...", "Send a message that begins with a slash."),
        ("Alt-Enter", "Start a new line; so does Enter after a trailing backslash."),
        ("Ctrl-C", "Stop the answer and keep what there is of it; at the prompt, clear the line; twice, leave."),
        ("Ctrl-D", "Leave."),
    ])


@_command()
def clear(loop: ChatLoop, _: str) -> None:
    """Forget the conversation and start a new one; the system prompt stays."""
    loop.conversation.clear()
    loop.keeper.begin()
    loop.renderer.note("new conversation")


@_command()
def regen(loop: ChatLoop, _: str) -> None:
    """Make the last answer again."""
    loop.turn(loop.conversation.regenerate)


@_command()
def undo(loop: ChatLoop, _: str) -> None:
    """Take the last question and its answer back, or the files that wait to be sent."""
    files = bool(loop.conversation.draft.files)
    first = loop.conversation.undo().strip().split("\n", 1)[0]
    if not files:
        loop.keep()
    loop.renderer.note(f"taken back: {first if len(first) <= 60 else first[:60] + '...'}")


@_command("[TEXT]")
def system(loop: ChatLoop, text: str) -> None:
    """Set the system prompt, or show it; `/system none` removes it."""
    if text:
        loop.conversation.system = None if text == "none" else text
    loop.renderer.note(f"system prompt: {loop.conversation.system}" if loop.conversation.system else "no system prompt")


@_command("FILE")
def save(loop: ChatLoop, name: str) -> None:
    """Save the conversation as JSON."""
    path = Path(name).expanduser()
    loop.renderer.note(f"saved {loop.conversation.save(path)} messages in {path}")


@_command("FILE")
def load(loop: ChatLoop, name: str) -> None:
    """Continue a saved conversation in the place of this one."""
    path = Path(name).expanduser()
    n_messages = loop.conversation.load(path)
    loop.keeper.begin()
    loop.renderer.note(f"loaded {n_messages} messages from {path}")


@_command("[NAME | rm NAME]")
def chats(loop: ChatLoop, what: str) -> None:
    """List the kept conversations; with a name go on with that one, `/chats rm NAME` deletes it and its K and V."""
    kept = loop.keeper.kept
    word, _, rest = what.partition(" ")
    if word == "rm":
        name = rest.strip()
        if not name:
            raise EdgeKVError("/chats rm needs a name after it; /chats lists them")
        if name == loop.keeper.name:
            raise EdgeKVError(f"{name} is the conversation that you are in; /clear begins another one")
        kept.remove(name, loop.server)
        loop.renderer.note(f"removed {name}, and the K and V that only it used")
    elif what:
        n_messages = loop.keeper.open(what)
        loop.renderer.note(f"going on with {what}, {n_messages} messages")
        loop.renderer.exchange(loop.conversation.turns)
    else:
        entries, problems = kept.entries()
        if entries:
            print_rows([structs.asdict(entry) for entry in entries], _CHATS, "table")
        else:
            loop.renderer.note("no conversation is kept yet")
        for problem in problems:
            loop.renderer.note(f"left out: {problem}")


@_command("FILE")
def read(loop: ChatLoop, name: str) -> None:
    """Put a file's text before the next message."""
    path = Path(name).expanduser()
    text = read_text(path)
    if not text.strip():
        raise EdgeKVError(f"{path} is empty")
    loop.conversation.draft.files.append((path.name, text))
    loop.renderer.note(f"{path.name}: {len(text):,} characters, sent with the next message")


@_command()
def stats(loop: ChatLoop, _: str) -> None:
    """Show the model, the length and speed of the conversation, and how attention is computed."""
    last, server = loop.conversation.last, loop.server
    rows = [*server.model_rows(), ("messages", str(len(loop.conversation.messages)))]
    if last is not None and last.timings is not None:
        timings = last.timings
        rows.append(("context", f"{timings.n_context:,}{f' of {server.n_ctx:,}' if server.n_ctx else ''} tokens"))
        if timings.prefill_tps:
            known = f", {timings.n_cached:,} known from before" if timings.n_cached else ""
            rows.append(("prefill", f"{timings.n_prompt:,} tokens at {timings.prefill_tps:.0f} t/s{known}"))
        if timings.decode_tps:
            rows.append(("decode", f"{timings.n_predicted:,} tokens at {timings.decode_tps:.1f} t/s"))
    loop.renderer.table([*rows, *server.attention_rows()])


@_command()
def memory(loop: ChatLoop, _: str) -> None:
    """Show what the KV cache and the model occupy, and what was read; on a GPU also which pages live where and why."""
    loop.renderer.table(loop.server.memory_rows())


@_command("[N|last|system]")
def pin(loop: ChatLoop, which: str) -> None:
    """Keep a message in a full context, and in mode sparse always attend it; without a name, list the messages and the pins."""
    loop.check_pins()
    if which:
        loop.pins.add(which)
    spans = loop.apply_pins()
    messages = loop.conversation.messages
    if not messages:
        raise EdgeKVError("there is no message to pin yet")
    first = 0 if messages[0]["role"] == SYSTEM else 1
    rows = []
    for index, message in enumerate(messages):
        text = " ".join(message["content"].split())
        line = text if len(text) <= 60 else f"{text[:60]}..."
        if index in spans:
            span = spans[index]
            state = f"pinned, tokens {span[0]:,} to {span[1]:,}" if span else "pinned as soon as it is in the context"
            line = f"{line}  ({state})"
        elif loop.pins.holds(message):
            line = f"{line}  (pinned: it stays where the context is full)"
        rows.append((SYSTEM if message["role"] == SYSTEM else str(index + first), f"{message['role']}: {line}"))
    loop.renderer.table(rows)


@_command()
def unpin(loop: ChatLoop, _: str) -> None:
    """Take all pins back, that of the system prompt too."""
    loop.check_pins()
    loop.pins.clear()
    loop.apply_pins()
    loop.renderer.note("nothing is pinned")


@_command()
def exit(loop: ChatLoop, _: str) -> None:  # noqa: A001 (as above)
    """Leave; so do /quit and Ctrl-D."""
    loop.leaving = True


COMMANDS["/quit"] = COMMANDS["/exit"]
