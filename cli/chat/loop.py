"""The interactive session: read a message or command, answer, show the footer, again."""

from collections.abc import Callable

from edgekv.cli.chat import commands
from edgekv.cli.chat.client import AnswerPiece
from edgekv.cli.chat.input import ChatInput
from edgekv.cli.chat.kept import Keeper
from edgekv.cli.chat.pinned_messages import Pins
from edgekv.cli.chat.render import Renderer, overflow_advice
from edgekv.cli.chat.session import ChatAnswer, Conversation
from edgekv.cli.chat.views import OwnServer, ServerView
from edgekv.common.enums import KvMode, WhenFull
from edgekv.common.errors import ContextOverflow, EdgeKVError


class ChatLoop:
    """The state of a session; commands work on it."""

    def __init__(self, server: ServerView, conversation: Conversation, renderer: Renderer, keeper: Keeper):
        self.server = server
        self.conversation = conversation
        self.renderer = renderer
        self.keeper = keeper
        self.pins = Pins(conversation)
        self.leaving = False
        self._not_kept = ""

    def run(self) -> None:
        """Run until the person leaves. Raises EdgeKVError when the server is gone."""
        keyboard = ChatInput(commands.words(), self.renderer.note, self.renderer.styled, self.keeper.kept.names)
        while not self.leaving:
            try:
                self._turn(keyboard)
            except ContextOverflow as error:
                self.renderer.error(overflow_advice(error, self.server.n_ctx_train, in_session=True))
            except EdgeKVError as error:
                if self.server.gone is not None:
                    raise
                self.renderer.error(str(error))
            except KeyboardInterrupt:  # between an answer and the prompt there is nothing to stop
                continue
        if self.keeper.name is not None:
            self.renderer.note(f"kept as {self.keeper.name}; `edgekv chat --resume` goes on")

    def _turn(self, keyboard: ChatInput) -> None:
        draft = self.conversation.draft
        message = keyboard.read("".join(f"[{name}] " for name, _ in draft.files) + "> ", draft.text)
        if message is None:
            self.leaving = True
            return
        draft.text = ""
        if message.startswith("/") and not message.startswith("//"):
            commands.run(self, message)
        else:
            draft.text = message[1:] if message.startswith("//") else message
            self.turn(self.conversation.send)

    def turn(self, answer_with: Callable[[Callable[[AnswerPiece], None]], ChatAnswer]) -> None:
        """Show one answer and its footer; `answer_with` is the conversation's send or regenerate. Raises EdgeKVError for an answer that broke off,
        after it was kept."""
        self.apply_pins()  # pins that appear during an answer would change what its tokens read
        with self.renderer.turn() as show:
            answer = answer_with(show)
        if answer.interrupted and not answer.text:
            self.renderer.note("stopped before the answer began; nothing is lost")
        else:
            self.renderer.footer(answer)
        self.keep()
        if answer.broken:
            raise EdgeKVError(answer.broken)
        self.apply_pins()
        self.renderer.note("")

    def keep(self) -> None:
        """Keep the conversation; where that fails, say so once and go on."""
        try:
            self.keeper.keep()
        except EdgeKVError as error:
            if str(error) != self._not_kept:
                self._not_kept = str(error)
                self.renderer.error(f"this conversation is not kept: {error}")

    def check_pins(self) -> None:
        """Raise EdgeKVError if a pin has no effect: no context rolls, and each token attends every message whole."""
        if not isinstance(self.server, OwnServer):
            raise EdgeKVError("a chat cannot pin messages on another server; leave --url out to load the model here")
        if not self._chooses and self.server.when_full is WhenFull.STOP:
            attached = self.server.runtime
            mode = KvMode.OFF if attached is None else attached.mode
            raise EdgeKVError(f"mode {mode.value} attends every message whole, so there is nothing to pin; use --kv sparse or --when-full roll")

    @property
    def _chooses(self) -> bool:
        """Whether a token attends some messages and others not."""
        attached = self.server.runtime
        return attached is not None and attached.mode in (KvMode.SPARSE, KvMode.EVICT)

    def apply_pins(self) -> dict[int, tuple[int, int] | None]:
        """Update the pins in the cache between two answers: see `Pins.apply`."""
        return self.pins.apply(self.server) if self._chooses else {}
