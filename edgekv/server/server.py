"""llama.cpp's own HTTP server, inside this process, on a thread of its own."""

from __future__ import annotations

import atexit
import logging
import secrets
import sys
import threading
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from msgspec import structs

from edgekv.common.enums import Drafting, KvMode, WhenFull
from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.models import Geometry
from edgekv.models.geometry import open_model
from edgekv.planning import devices
from edgekv.planning.allocations import MemoryPart
from edgekv.planning.context import choose_context
from edgekv.planning.fit import ContextChoice
from edgekv.planning.later import check_placed, later_bytes
from edgekv.server import first_tokens
from edgekv.server.arguments import command_line
from edgekv.server.drafts import drafting, with_draft_model
from edgekv.server.errands import Result
from edgekv.server.log import ServerLog
from edgekv.server.room import body_bytes, failed_start, memory_request, pinned_context
from edgekv.server.server_options import (
    LOOPBACK,
    ServerOptions,
    bounded,
    check_evict,
    check_extra,
    check_recall,
    free_port,
    later_options,
    llama_has_keys,
    spaces_of,
    with_measured,
)
from edgekv.server.sites import Admitted, admitted, is_public

if TYPE_CHECKING:
    from edgekv.runtime.runtime import Runtime
    from edgekv.server.keepers import Keepers
    from edgekv.server.prefixes import Prefixes
    from edgekv.server.publisher import Publisher
    from edgekv.server.recalling import Recall

log = logging.getLogger("edgekv")

_POLL_S = 0.02
_STOP_S = 60.0
_INTERRUPTIBLE_S = 0.5


class Server:
    """One llama.cpp server in this process; also a context manager. Only one server can run at a time.

    Signals stay Python's: a handler that should end the server calls `stop()`. KV tiering attaches to the server's context with `options.kv`.
    """

    def __init__(self, options: ServerOptions):
        file = open_model(options.model)
        self.model: Geometry = file.geometry
        check_evict(options)
        check_recall(options, self.model)
        self.placement = devices.place(options.kv, options.model)
        self.options = with_draft_model(replace(options, kv=self.placement.in_force(options.kv)))
        keys = options.api_keys()
        self.options = with_measured(self.options)
        self.options = bounded(self.options, self.model)
        check_placed(later_options(self.options), self.placement)
        # An extra key of our own, for this process's requests, and because llama.cpp logs the end of a key that is the only one.
        self._keys = (secrets.token_urlsafe(), *keys) if keys or llama_has_keys() else ()
        self.request = memory_request(self.options, file, self.placement)
        self.context = self._choose_context()
        self.draft = drafting(self.options, self.model, on_host=self.context.device is None)
        """Where drafts come from."""
        self.port = options.port
        # An event instead of Thread.join(): an interrupt during the join makes Python believe that the thread has ended (bpo-45274).
        self._ended = threading.Event()
        self._ended.set()
        self._turned = threading.Event()
        """The server's task loop took its first turn, or the server has ended."""
        self._equipped = threading.Event()
        """What a context needs besides the model was imported: one thread at a time imports."""
        self._log: ServerLog | None = None
        self._exit: int | BaseException | None = None
        self._ready = False
        self._thread: threading.Thread | None = None
        self._runtime: Runtime | None = None
        self._keepers: Keepers | None = None

    @cached_property
    def figures(self) -> Publisher:
        """The endpoint's figures of the KV hierarchy."""
        from edgekv.server.publisher import Publisher  # while the model is loaded
        from edgekv.server.shown import Served

        served = Served(self.alias, self.options.n_slots, self.context.n_ctx, self.context.kv_bytes, self.options.has_chat_page)
        return Publisher(served, lambda: self.runtime, lambda: self.prefixes, lambda: first_tokens.decode_speed(self.request))

    def _choose_context(self) -> ContextChoice:
        """Choose the context's size and device. Raises DoesNotFit."""
        choice = choose_context(self.request)
        kv = self.request.with_hot_rows(choice.n_ctx, self.options.kv)
        if choice.device is not None and later_bytes(later_options(self.options)) and kv.placement.kv_vram is None:  # a draft model needs memory later
            kv = kv.with_(kv_vram=choice.device.budget)
        self.options = replace(self.options, kv=kv)
        return choice

    def parts(self) -> list[MemoryPart]:
        """The context's estimated memory, by part."""
        return self.request.parts(self.context.n_ctx, self.options.kv)

    @property
    def needs_key(self) -> bool:
        """Whether only requests with a key are answered."""
        return bool(self._keys)

    @property
    def alias(self) -> str:
        return self.options.alias or self.options.model.stem

    @property
    def url(self) -> str:
        """Base address, without a path; a server that listens everywhere is reached through the loopback."""
        host = {"0.0.0.0": LOOPBACK, "::": "[::1]"}.get(self.options.host, self.options.host)
        return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self.port}"

    @property
    def is_public(self) -> bool:
        """Whether other machines can reach the server."""
        return is_public(self.options.host)

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    @property
    def ready(self) -> bool:
        """Whether the model is loaded and requests are answered."""
        return self._ready and self.alive

    @property
    def answering(self) -> bool:
        """Whether requests are answered, also before `start()` has said so."""
        return self.ready or self.alive and _turn()

    @property
    def runtime(self) -> Runtime | None:
        """The Runtime of the answering context; None if none is attached, and until the server is ready."""
        return None if self._runtime is None or self._runtime.closed else self._runtime

    @property
    def prefixes(self) -> Prefixes | None:
        """The keeper of prefixes, or None."""
        return None if self._keepers is None else self._keepers.prefixes

    @property
    def recall(self) -> Recall | None:
        """The keeper of exchanges that left a full context, or None."""
        return None if self._keepers is None else self._keepers.recall

    @property
    def log_path(self) -> Path | None:
        return self._log.path if self._log else None

    def note(self, line: str) -> None:
        """Write a line into the log while the server runs."""
        if self._log is not None:
            self._log.note(line)

    def start(self) -> Server:
        """Load the model, if `begin()` did not; return when the server answers requests: the context may be shorter then (`context`). Raises as
        `begin()`, and EdgeKVError if the server fails to start. An interrupt cannot stop the load of a model: `stop()` then waits for its end."""
        if _active is not self or self._ready:
            self.begin()
        self._wait_until_ready()
        if (n := pinned_context(self.options.n_ctx, self.context, self.placement)) is not None:
            self._begin_again(n)
            self._wait_until_ready()
        return self

    def _begin_again(self, n_ctx: int) -> None:
        """Load the model with fewer tokens of context, whose K and V the system pins."""
        note = (f"the context is {n_ctx:,} tokens: the system refused to pin K and V of {self.context.n_ctx:,} in host memory, and the GPU can only read "
                "pinned memory (--ctx sets another)")
        log.warning("%s; the model is loaded again", note)
        self.stop()
        self.request = structs.replace(self.request, n_ctx=n_ctx)
        self.context = structs.replace(self._choose_context(), note=note)
        self.begin()

    def begin(self) -> None:
        """Begin to load the model, on another thread; `start()` waits for it. Raises ConfigError for a busy port or a forbidden option."""
        global _active
        if _active is not None:
            raise EdgeKVError("a server is already running in this process, and there can be only one; stop it first")
        check_extra(self.options.extra)
        self.port = free_port(self.options.host, self.options.port)
        hosts = admitted(self.options.host, self.options.allow_host, self.is_public)
        from edgekv import _native, owns_process

        (_native.load if owns_process else _native.prepare)()  # a command can leave a load that wrong versions end; a program cannot
        from edgekv._native import crash, http_server
        from edgekv.runtime import attachments

        attachments.set_defaults(self.options.kv, self._attached, self._equipped.wait)
        self._runtime = None
        self._log = ServerLog(self.options.log_file)
        try:
            self._log.open()
        except OSError as error:
            raise ConfigError(f"the log file {self.options.log_file} cannot be written: {error.strerror}; name another") from None
        crash.details_in(self._log.path)
        self._told: list[http_server.Request] = []  # before figures begin
        http_server.program.refresh, http_server.program.request = lambda idle: self._turned.set(), self._told.append
        self._exit, self._ready, argv = None, False, self._argv()
        for event in (self._ended, self._turned, self._equipped):
            event.clear()
        _active = self
        self._thread = threading.Thread(target=self._run, args=(argv, hosts), name="llama-server", daemon=True)
        self._thread.start()
        try:
            from edgekv.server.keepers import Keepers  # with the Runtime and NumPy: this takes as long as a small model's load

            self._keepers = Keepers(self.model, self.options, on_device=self.context.device is not None)
        finally:
            self._equipped.set()

    def stop(self) -> None:
        """Stop the server and wait for its end; safe to call twice, and after a failure."""
        if _active is not self:
            return
        if not self._ready and self.alive:
            self._wait_until_ready()  # only a ready server can be told to stop
        if self.alive:
            from edgekv._native import http_server as native

            native.terminate()
            if not self._ended.wait(_STOP_S):
                raise EdgeKVError(f"the server did not stop within {_STOP_S:.0f} s")
        self._release(failed=self._exit != 0)

    def abandon(self) -> None:
        """For a process that exits and cannot wait for `stop()`: remove a temporary log. The server's thread still writes there, not to the screen."""
        if self._log is not None:
            self._log.remove()

    def wait(self) -> None:
        """Block until the server ends by itself, which is an error. Raises EdgeKVError with the reason. Interruptible."""
        while not self._ended.wait(_INTERRUPTIBLE_S):
            pass
        raise self.why_stopped()

    def why_stopped(self) -> EdgeKVError:
        """One sentence about a server that ended by itself."""
        if isinstance(self._exit, EdgeKVError):
            return self._exit
        if isinstance(self._exit, BaseException):
            return EdgeKVError(f"llama.cpp's server ended: {self._exit or type(self._exit).__name__}")
        return EdgeKVError("the server was not started") if self._log is None else self._log.explain()

    def __enter__(self) -> Server:
        return self if _active is self and self._ready else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _argv(self) -> list[str]:
        return command_line(self, self._keys)

    def _run(self, argv: list[str], hosts: Admitted) -> None:
        from edgekv._native import core
        from edgekv._native import http_server as native

        options, limits = self.options, self.options.limits
        try:
            if not core.enabled():  # otherwise the first context waits, when it is attached
                self._equipped.wait()
            self._exit = native.run(
                argv, hosts.names, spaces_of(self._keys) if self._keys and not options.cache_shared else None, options.store is not None,
                options.recall is not None, any_address=hosts.any_address, max_gap_s=limits.max_gap_s, n_slots=options.n_slots,
                max_queue=limits.queue_for(options.n_slots), max_body=body_bytes(options, self.context.n_ctx), strict=limits.strict_fields,
                rolls=options.when_full is WhenFull.ROLL, drafts=self.draft is Drafting.NGRAM)
        except BaseException as error:  # why_stopped() reports it
            self._exit = error
        finally:
            self._ended.set()
            self._turned.set()

    def _wait_until_ready(self) -> None:
        while not (self._turned.wait(_INTERRUPTIBLE_S) or _turn()):  # a loop that is at work at once does not say so
            pass
        if not self.alive:
            error = self.why_stopped()
            self._release(failed=True)
            raise failed_start(self.options.kv, error)
        self._ready = True
        self._check_runtime()
        if self._runtime is not None:
            first_tokens.watch(self._runtime, self.request)
        self.figures.begin(self._told)
        self.between_batches(self.figures.take)  # whoever asks now gets figures

    def _attached(self, made: Runtime) -> None:
        """A context was made. The server's thread makes the answering context before others (a draft model's), and again after sleep."""
        if threading.current_thread() is self._thread and (self._runtime is None or self._runtime.closed):
            self._runtime = made
            if self._ready:
                self.figures.follow(made)

    def _check_runtime(self) -> None:
        """Check that mode evict has a Runtime: its cache is smaller than the context, and soon full if nothing makes room."""
        from edgekv.runtime import attachments

        if self.options.kv.mode is KvMode.EVICT and attachments.core.enabled() and self._runtime is None:
            error = attachments.last_failure() or EdgeKVError("mode evict did not begin")
            self.stop()
            raise error
        try:
            if self._keepers is not None:
                self._keepers.open(self._runtime)
        except EdgeKVError:
            self.stop()
            raise

    def settle(self) -> None:
        """Return once the rows of all answers so far are kept: the newest are kept only after the answer was sent."""
        if _turn():  # else it sleeps, and nothing is left to keep
            self.between_batches(lambda: None)

    def between_batches(self, function: Callable[[], Result]) -> Result:
        """Call `function` on the decoding thread, while nothing is computed, and return its result. A request that a client left is
        computed for up to a second more. Not for the decoding thread. Raises the function's exceptions, and EdgeKVError if the server is gone."""
        future = self.figures.errands.ask(function)
        try:
            while not future.done():
                if not self.alive:
                    raise self.why_stopped()
                _turn()  # an idle server looks for errands
                wait([future], timeout=_POLL_S)
        finally:
            future.cancel()
        return future.result()

    def _release(self, failed: bool) -> None:
        global _active
        from edgekv._native import crash
        from edgekv.runtime import attachments

        keepers, self._keepers = self._keepers, None
        if keepers is not None:
            keepers.close()
        self.figures.end()
        if (messages := sys.modules.get("edgekv.messages")) is not None:
            messages.listen()  # Python takes the log back from the server
        if self._log is not None:
            self._log.close(keep=failed)
        crash.details_in(None)
        self._thread = self._runtime = None
        attachments.set_defaults(None)  # later contexts are not the server's
        _active = None


_active: Server | None = None


def _turn() -> bool:
    from edgekv._native import http_server  # with llama.cpp's libraries

    return http_server.turn()


def active() -> Server | None:
    """The server of this process, if one runs or loads."""
    return _active


@atexit.register
def _stop_active() -> None:
    if _active is not None:
        _active.stop()
