"""What a chat needs to know of the server that answers, and the one that runs in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from edgekv.cli.chat.kv_status import KvStatus, KvWatch, Row, layer_rows, memory_rows, mode_summary
from edgekv.serving.server import Server
from edgekv.store import conversations
from edgekv.store.settings import default_folder

if TYPE_CHECKING:
    from edgekv.live.runtime import Runtime


Span = tuple[int, int]
"""First and last position."""


class ServerView(Protocol):
    """Lengths are in tokens; None is what nobody here can know."""

    @property
    def n_ctx(self) -> int | None: ...

    @property
    def n_ctx_train(self) -> int | None: ...

    @property
    def runtime(self) -> Runtime | None:
        """What hangs on the context that answers, where that is in this process."""

    @property
    def gone(self) -> str | None:
        """Why there will be no more answers, ever; None while there may be."""

    def summary(self) -> str:
        """The model, its context and KV mode, for the line that a chat begins with."""

    def begin(self) -> None:
        """An answer begins."""

    def converse(self, conversation: str) -> None:
        """What is kept from now on belongs to this conversation."""

    def forget(self, conversation: str) -> None:
        """K and V that are kept on this machine of a conversation, and of no other, go. Raises EdgeKVError."""

    def pin(self, spans: list[Span]) -> list[Span | None]:
        """Pin these positions and no others; what of each is in the context now. Where `runtime` is None there is nothing to pin."""

    def status(self, n_used: int) -> KvStatus:
        """The state of the KV cache with `n_used` tokens in it, after an answer."""

    def model_rows(self) -> list[Row]: ...

    def attention_rows(self) -> list[Row]: ...

    def memory_rows(self) -> list[Row]: ...


class OwnServer:
    """The server of this process: everything can be known."""

    def __init__(self, server: Server):
        self._server, self._watch = server, KvWatch(server)

    @property
    def n_ctx(self) -> int:
        return self._server.context.n_ctx

    @property
    def n_ctx_train(self) -> int:
        return self._server.model.n_ctx_train

    @property
    def runtime(self) -> Runtime | None:
        return self._server.runtime

    @property
    def gone(self) -> str | None:
        return None if self._server.alive else self._server.why_stopped()

    def summary(self) -> str:
        return f"{self._server.alias}: context {self.n_ctx:,}, KV {mode_summary(self._server)}"

    def begin(self) -> None:
        self._server.between_batches(self._watch.begin)

    def pin(self, spans: list[Span]) -> list[Span | None]:
        runtime = self._server.runtime
        return [] if runtime is None else self._server.between_batches(lambda: pin_only(runtime, spans))

    def converse(self, conversation: str) -> None:
        if self._server.prefixes is not None:
            self._server.settle()
            self._server.prefixes.conversation = conversation

    def forget(self, conversation: str) -> None:
        if (prefixes := self._server.prefixes) is not None:
            self._server.settle()
            prefixes.forget(conversation)
        conversations.forget(default_folder(), conversation)  # where this chat keeps nothing there too

    def status(self, n_used: int) -> KvStatus:
        return self._server.between_batches(lambda: self._watch.status(n_used))

    def model_rows(self) -> list[Row]:
        model = self._server.model
        return [("model", f"{model.name or self._server.alias} ({model.file_type}, {model.n_params / 1e6:,.0f} M parameters)")]

    def attention_rows(self) -> list[Row]:
        return self._server.between_batches(lambda: layer_rows(self._server))

    def memory_rows(self) -> list[Row]:
        return self._server.between_batches(lambda: memory_rows(self._server))


def pin_only(runtime: Runtime, spans: list[Span]) -> list[Span | None]:
    """Pin these positions and no others, also those whose tokens are still to come; what of each is in the context now. Only while nothing
    decodes."""
    runtime.unpin_all()
    n_positions = runtime.n_positions
    return [(first, min(last, n_positions - 1)) if runtime.pin(first, last, ahead=True) else None for first, last in spans]
