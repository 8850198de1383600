"""A chat's view of the server that answers, and that of the server in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

import edgekv
from edgekv._native import isa
from edgekv.cli.chat.kv_status import KvStatus, KvWatch, Row, layer_rows, memory_rows, mode_text
from edgekv.cli.common.summary import memory_line
from edgekv.common.enums import KvMode, WhenFull
from edgekv.common.units import parameters
from edgekv.prefix_cache import conversations
from edgekv.prefix_cache.settings import default_folder
from edgekv.server.server import Server

if TYPE_CHECKING:
    from edgekv.runtime.runtime import Runtime


Span = tuple[int, int]
"""First and last position."""


class ServerView(Protocol):
    """Lengths are in tokens; None: unknown here. What has a body is so for a server that is not this process's."""

    @property
    def n_ctx(self) -> int | None: ...

    @property
    def n_ctx_train(self) -> int | None:
        return None

    @property
    def runtime(self) -> Runtime | None:
        """The Runtime of the context that answers; None: it is not in this process."""
        return None

    @property
    def gone(self) -> str | None:
        """The reason if no more answers are possible; None: they are, or the server may come back."""
        return None

    def summary(self) -> str:
        """The model, its context and KV mode, and the memory, as far as they are known, for a chat's first lines."""

    def begin(self) -> None:
        """Note that an answer begins."""
        return

    def converse(self, conversation: str) -> None:
        """Keep K and V for this conversation from now on."""
        return

    def forget(self, conversation: str) -> None:
        """Remove the K and V that only this conversation has on this machine. Raises EdgeKVError."""

    def pin(self, spans: list[Span]) -> list[Span | None]:
        """Pin these positions and no others; returns the part of each span that is in the context. Without a `runtime` nothing is pinned."""
        return []

    def status(self, n_used: int) -> KvStatus:
        """The state of the KV cache after an answer, with `n_used` tokens in it."""

    def model_rows(self) -> list[Row]: ...

    def attention_rows(self) -> list[Row]: ...

    def memory_rows(self) -> list[Row]: ...


class OwnServer:
    """The server of this process, of which everything is known."""

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
    def when_full(self) -> WhenFull:
        return self._server.options.when_full

    @property
    def gone(self) -> str | None:
        return None if self._server.alive else str(self._server.why_stopped())

    def summary(self) -> str:
        runtime, folder = self._server.runtime, self._server.options.kv.cache.kv_dir
        mode = KvMode.OFF.value if runtime is None else mode_text(runtime)
        request = self._server.request
        where = f"{request.n_threads} thread{'s' * (request.n_threads > 1)}, {isa()}" if request.room is None else request.room.name
        return (f"EdgeKV {edgekv.__version__} · {self._server.alias} · context {self.n_ctx:,} · KV {mode}{f' in {folder}' if folder else ''}\n"
                f"{where} · {memory_line(self._server)}")

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
        status = self._server.between_batches(lambda: self._watch.status(n_used))
        return status if self._stock_speed is None else replace(status, stock_tps=self._stock_speed(n_used))

    @cached_property
    def _stock_speed(self) -> Callable[[int], float] | None:
        """Nothing is measured for it; on a GPU, or where stock itself answers, there is no figure."""
        options, request = self._server.options, self._server.request
        if self._server.runtime is None or request.room is not None:
            return None
        from edgekv.measure.planned import stock_speed

        return stock_speed(options.model, options.kv, request.n_threads)

    def model_rows(self) -> list[Row]:
        model = self._server.model
        return [("model", f"{model.name or self._server.alias} ({model.file_type}, {parameters(model.n_params)} parameters)")]

    def attention_rows(self) -> list[Row]:
        return self._server.between_batches(lambda: layer_rows(self._server))

    def memory_rows(self) -> list[Row]:
        return self._server.between_batches(lambda: memory_rows(self._server))


def pin_only(runtime: Runtime, spans: list[Span]) -> list[Span | None]:
    """Pin these positions and no others, also those whose tokens are still to come; returns the part of each span that is in the context. Call it
    only while nothing decodes."""
    runtime.unpin_all()
    n_positions = runtime.n_positions
    return [(first, min(last, n_positions - 1)) if runtime.pin(first, last, ahead=True) else None for first, last in spans]
