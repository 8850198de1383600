"""What a server keeps of its conversations: prefixes, and exchanges that leave a full context. And what holds its answers to forms, and fetches media."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekv._native import form_callbacks, http_server, prefix_callbacks
from edgekv.arrays import backend  # noqa: F401  # now: the thread of a context is to import nothing
from edgekv.common.errors import EdgeKVError
from edgekv.models.geometry import Geometry
from edgekv.runtime import context
from edgekv.runtime.runtime import Runtime
from edgekv.server.answer_forms import AnswerForms
from edgekv.server.cache_requests import CacheRequests
from edgekv.server.media_hosts import MediaHosts
from edgekv.server.prefixes import Prefixes
from edgekv.server.server_options import ServerOptions

if TYPE_CHECKING:
    from edgekv.server.recalling import Recall


class Keepers:
    """The keepers of one server. They exist before its model is loaded, and begin with its context."""

    def __init__(self, model: Geometry, options: ServerOptions, on_device: bool):
        if context.tiers_in(options.kv, on_device):
            from edgekv.runtime import wiring  # noqa: F401  # with the policies; now, as above
        self.prefixes = Prefixes(model, options.store, options.shows_texts) if options.store is not None else None
        self.recall: Recall | None = None
        if options.recall is not None:
            from edgekv.server.recalling import Recall  # with gguf, which takes as long to import as all of these

            self.recall = Recall(model, options.recall, options.store, self.prefixes)
        self._connect(self.prefixes, self.recall)
        form_callbacks.set_forms(AnswerForms())
        http_server.fetch_media(MediaHosts(options.allow_media_host).answer)

    def open(self, runtime: Runtime | None) -> None:
        """A context was loaded. Raises EdgeKVError if what was asked for cannot be kept."""
        if self.prefixes is not None and runtime is not None:
            self.prefixes.open(runtime, http_server.projector())
        if self.recall is not None:
            if runtime is None:
                raise EdgeKVError("EdgeKV is not attached to the server's context, and nothing could be recalled; leave --recall out")
            self.recall.open(runtime)

    def close(self) -> None:
        self._connect(None, None)
        if self.recall is not None:
            self.recall.close()
        if self.prefixes is not None:
            self.prefixes.close()

    @staticmethod
    def _connect(prefixes: Prefixes | None, recall: Recall | None) -> None:
        """Let the server of this process use keepers, and clients see what they keep. Only while no server runs."""
        prefix_callbacks.set_keepers(prefixes, recall)
        http_server.answer_caches(None if prefixes is None else CacheRequests(prefixes.kept, prefixes.slot_tokens).answer)
