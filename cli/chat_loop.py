"""The interactive session: read a message or command, answer, show the footer, again."""

from __future__ import annotations

from collections.abc import Callable

from edgekv.cli import chat_commands
from edgekv.cli.chat_client import Piece
from edgekv.cli.chat_input import ChatInput
from edgekv.cli.chat_render import Renderer, overflow_advice
from edgekv.cli.chat_session import Answer, Conversation
from edgekv.errors import ContextOverflow, EdgeKVError
from edgekv.server import Server


class ChatLoop:
    """What the commands work on."""

    def __init__(self, server: Server, conversation: Conversation, renderer: Renderer):
        self.server = server
        self.conversation = conversation
        self.renderer = renderer
        self.leaving = False

    def run(self) -> None:
        """Until the person leaves. Raises EdgeKVError when the server is gone."""
        keyboard = ChatInput(list(chat_commands.COMMANDS), self.renderer.note, self.renderer.styled)
        while not self.leaving:
            try:
                self._step(keyboard)
            except ContextOverflow as error:
                self.renderer.error(overflow_advice(error, self.server.model.n_ctx_train, in_session=True))
            except EdgeKVError as error:
                if not self.server.alive:
                    raise
                self.renderer.error(str(error))
            except KeyboardInterrupt:  # between an answer and the prompt: there is nothing to stop
                continue

    def _step(self, keyboard: ChatInput) -> None:
        draft = self.conversation.draft
        message = keyboard.read("".join(f"[{name}] " for name, _ in draft.files) + "> ", draft.text)
        if message is None:
            self.leaving = True
            return
        draft.text = ""
        if message.startswith("/") and not message.startswith("//"):
            chat_commands.run(self, message)
        else:
            draft.text = message[1:] if message.startswith("//") else message
            self.turn(self.conversation.send)

    def turn(self, answer_with: Callable[[Callable[[Piece], None]], Answer]) -> None:
        """Show one answer and its footer; `answer_with` is the conversation's send or regenerate."""
        with self.renderer.turn() as show:
            answer = answer_with(show)
        if answer.interrupted and not answer.text:
            self.renderer.note("stopped before the answer began; nothing is lost")
        else:
            self.renderer.footer(answer)
        self.renderer.note("")
