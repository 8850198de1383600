"""What a server keeps of its conversations: prefixes, and exchanges that leave a full context. And what holds its answers to forms, and fetches media."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgekv import _native
from edgekv._native import form_callbacks, http_server, prefix_callbacks
from edgekv._native.http_server import program
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
        _native.prepare()  # a command has left the versions to this
        if context.tiers_in(options.kv, on_device):
            from edgekv.runtime import wiring  # noqa: F401  # with the policies; now, as above
        self.prefixes = Prefixes(model, options.store, options.shows_texts) if options.store is not None else None
        self.recall: Recall | None = None
        if options.recall is not None:
            from edgekv.server.recalling import Recall  # with gguf, which takes as long to import as all of these

            self.recall = Recall(model, options.recall, options.store, self.prefixes)
        prefix_callbacks.define()
        form_callbacks.define()
        program.prefixes, program.recalls, program.forms, program.media = self.prefixes, self.recall, AnswerForms(), MediaHosts(options.allow_media_host).answer
        if self.prefixes is not None:
            program.caches = CacheRequests(self.prefixes.kept, self.prefixes.slot_tokens).answer

    def open(self, runtime: Runtime | None) -> None:
        """A context was loaded. Raises EdgeKVError if what was asked for cannot be kept."""
        if self.prefixes is not None and runtime is not None:
            self.prefixes.open(runtime, http_server.projector())
        if self.recall is not None:
            if runtime is None:
                raise EdgeKVError("EdgeKV is not attached to the server's context, and nothing could be recalled; leave --recall out")
            self.recall.open(runtime)

    def close(self) -> None:
        vars(program).clear()
        if self.recall is not None:
            self.recall.close()
        if self.prefixes is not None:
            self.prefixes.close()
