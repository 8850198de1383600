"""One question or a conversation, with any server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from edgekv.cli.chat.kept import Keeper, KeptChats
from edgekv.cli.chat.saved import read_records
from edgekv.cli.chat.session import Conversation
from edgekv.common.errors import EXIT_INTERRUPTED, EXIT_OK, ContextOverflow, EdgeKVError
from edgekv.prefix_cache.settings import default_folder

if TYPE_CHECKING:  # they take long to import, which `edgekv chat` does while the model is loaded
    from edgekv.cli.chat.client import ChatClient
    from edgekv.cli.chat.render import Renderer
    from edgekv.cli.chat.views import ServerView


class Talk(Struct, frozen=True):
    """question: None: a conversation at the terminal. resumed: the name of a kept conversation that goes on."""

    kept: KeptChats
    question: str | None
    system: str | None
    resumed: str | None
    wanted: bool = True
    """The person wants conversations kept."""

    def __post_init__(self) -> None:
        if self.resumed is not None:
            read_records(self.kept.path(self.resumed, "; leave --resume out"))  # before a model is loaded

    @property
    def keeping(self) -> bool:
        """Whether the conversation is kept. A single question is not: scripts ask them by the thousand."""
        return self.wanted and (self.question is None or self.resumed is not None)

    def run(self, server: ServerView, client: ChatClient, renderer: Renderer) -> int:
        """Run to the end; returns the exit code. Raises EdgeKVError."""
        conversation = Conversation(client, self.system)
        keeper = Keeper(conversation, self.kept, server, self.keeping)
        if self.resumed is not None:
            keeper.open(self.resumed)
            conversation.system = self.system or conversation.system
        renderer.kv = server
        if self.question is not None:
            return self._answer_once(self.question, server, keeper, renderer)
        renderer.note(f"{server.summary()} · /help · Ctrl-D leaves")
        if self.keeping and not self.kept.folder.exists():
            renderer.note(f"conversations are kept in {self.kept.folder}, and their K and V in {default_folder()}, which only you can read; "
                          "/chats lists them, /chats rm NAME deletes one, --no-keep keeps none")
        if self.resumed is not None:
            renderer.note(f"going on with {self.resumed}, {len(conversation.messages)} messages")
            renderer.exchange(conversation.turns)
        from edgekv.cli.chat.loop import ChatLoop  # imports the line editor, which one question does not need

        ChatLoop(server, conversation, renderer, keeper).run()
        return EXIT_OK

    def _answer_once(self, question: str, server: ServerView, keeper: Keeper, renderer: Renderer) -> int:
        from edgekv.cli.chat.render import overflow_advice

        conversation = keeper.conversation
        conversation.draft.text = question
        try:
            with renderer.turn() as show:
                answer = conversation.send(show)
        except ContextOverflow as error:
            advice = overflow_advice(error, server.n_ctx_train, in_session=False)
            raise ContextOverflow(advice, error.n_prompt_tokens, error.n_ctx) from None
        renderer.footer(answer)
        keeper.keep()
        if answer.broken:
            raise EdgeKVError(answer.broken)
        return EXIT_INTERRUPTED if answer.interrupted else EXIT_OK
