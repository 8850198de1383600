"""`edgekv serve`: the same in-process server as the chat's, for other clients."""

from __future__ import annotations

import logging
import logging.handlers
import os
import select
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from edgekv.cli.common.caches import caches_text, split_cache_options
from edgekv.cli.common.examples import examples
from edgekv.cli.common.help import SettingsCommand
from edgekv.cli.common.shared_options import later_files, model_argument, model_path, settings_of, split_kv_options, with_measured
from edgekv.common.enums import WhenFull
from edgekv.common.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED

if TYPE_CHECKING:
    from edgekv.server.server import Server

_WIDTH = 80
_MOST_LINES = 1000
_HELP = ("-h", "--help", "--usage")
_EXTRA = "edgekv.serve.extra"
_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


class _PassesOn(SettingsCommand):
    """Keeps the arguments after `--` for llama.cpp's server; click would take the first for MODEL."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[_EXTRA] = args[:cut], tuple(args[cut + 1:])
        return super().parse_args(ctx, args)


@click.command(cls=_PassesOn, epilog=examples(
    "edgekv serve --port 8080",
    "edgekv serve model.gguf --parallel 4 --ctx 8192 --cache-dir prefixes",
    "edgekv serve --host 0.0.0.0 --api-key-file keys",
    "edgekv serve -- --help         # the options of llama.cpp's server",
))
@model_argument
@settings_of("serve")
def serve(model: Path | None, parallel: int, max_queue: int | None, max_itl: float, strict_fields: bool, when_full: str | None,
          spec_type: str | None, **settings: Any) -> int:
    """Serve MODEL to OpenAI-compatible clients until Ctrl-C or SIGTERM.

    MODEL is a GGUF file; without one, the default model. Arguments after -- go to llama.cpp's server unchanged. Either signal
    informs clients that wait for an answer, cleans up, and ends the server with exit code 0. A second signal ends it at once, with exit
    code 130 or 143, and so does a signal while the model is loaded.
    """
    extra = click.get_current_context().meta.get(_EXTRA, ())
    from edgekv.cli.common.summary import summary_line, told_cost
    from edgekv.models.default import sampling as sampling_of
    from edgekv.server.drafts import chosen_draft
    from edgekv.server.server import Server
    from edgekv.server.server_options import ServerLimits, ServerOptions, try_extra, with_files

    if any(argument in _HELP for argument in extra):
        click.echo(try_extra(extra).stdout)
        return EXIT_OK
    store, path, draft = split_cache_options(settings), model_path(model), chosen_draft(spec_type, settings.pop("model_draft"))
    later = later_files(settings)
    placed = split_kv_options(settings, path, parallel)
    placed["kv"] = with_measured(path, placed["kv"], placed["n_threads"])
    server = Server(ServerOptions(
        path, **placed, **settings, n_slots=parallel, draft=draft, store=store,
        limits=ServerLimits(max_itl, max_queue, strict_fields), when_full=WhenFull(when_full or WhenFull.STOP),
        sampling=sampling_of(path), extra=with_files(later, extra),
    ))
    how_to_stop = _stop_on_signals()
    click.echo(_title(server), err=True)
    if cost := told_cost(server):
        click.echo(cost, err=True)
    try:
        server.start()
        if server.runtime is not None:
            server.note(summary_line(server, server.runtime))
        _announce(server, how_to_stop)
        _tell_requests()
        server.wait()
    except KeyboardInterrupt as interrupt:
        if not server.answering:  # a load cannot be stopped; ending the process loses nothing
            _leave_at_once(interrupt.args[0], "loading")
        _say("stopping")
    finally:
        server.stop()
    return EXIT_OK


def _stop_on_signals() -> str:
    """Make the first SIGINT or SIGTERM a KeyboardInterrupt; the second ends the process. Returns how a person sends the first.

    A script's command started with & ignores SIGINT, and Ctrl-C does not reach it; here a SIGINT that is sent counts all the same.
    """
    in_background = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) > 1:
            _leave_at_once(number, "stopping")
        raise KeyboardInterrupt(number)

    for number in _CODES:
        signal.signal(number, interrupt)
    return f"kill {os.getpid()} (SIGTERM) to stop" if in_background else "Ctrl-C to stop"


def _leave_at_once(number: int, meanwhile: str) -> NoReturn:
    from edgekv.server.server import active

    if (server := active()) is not None:
        server.abandon()
    _say(f"edgekv: interrupted while {meanwhile}")
    os._exit(_CODES[signal.Signals(number)])


def _say(text: str) -> None:
    """Print to standard error, unbuffered: a signal handler that interrupts a buffered write cannot write too. What nobody reads is not said."""
    if select.select((), (sys.stderr.fileno(),), (), 0)[1]:
        _write(text)


def _write(text: str) -> None:
    os.write(sys.stderr.fileno(), f"{text}\n".encode())


def _announce(server: Server, how_to_stop: str) -> None:
    from edgekv.cli.chat.kv_status import mode_summary
    from edgekv.cli.common.config_file import file_read

    if server.context.note:
        click.echo(f"note: {server.context.note}", err=True)
    options = server.options
    if not server.needs_key and server.is_public:
        click.echo("warning: ANYBODY who reaches this machine can use the server; --api-key-file FILE keeps others out", err=True)
    store = options.store
    rows = [("KV", mode_summary(server)), ("Chat", f"{server.url}/" if server.options.has_chat_page else None),
            ("API", f"{server.url}/v1" + (" (with a key)" if server.needs_key else "")), ("Live", f"{server.url}/edgekv"),
            ("Cache", caches_text(store) if store is not None and (store.folder or store.url) else None), ("Options", file_read())]
    for name, text in rows:
        if text is not None:
            click.echo(f"  {name:<8}{text}", err=True)
    click.echo(how_to_stop, err=True)


def _title(server: Server) -> str:
    """The model and its context, within a screen's width."""
    context = f"{server.context.n_ctx:,} tokens of context" + (f" for each of {n} slots" if (n := server.options.n_slots) > 1 else "")
    room = _WIDTH - len(context) - len(": ")
    return f"{server.alias if len(server.alias) <= room else f'{server.alias[:room - 3]}...'}: {context}"


def _tell_requests() -> None:
    """A line for each request that ends. A thread of its own writes, and holds no lock: where nobody reads what this process says, answers go on, and it
    can end."""
    lines: Queue[logging.LogRecord] = Queue(_MOST_LINES)
    log = logging.getLogger("edgekv.requests")
    log.addHandler(_Queued(lines))
    log.setLevel(logging.INFO)
    log.propagate = False
    is_terminal = sys.stderr.isatty()

    def tell() -> None:
        while True:
            text = lines.get().getMessage()
            _write(click.style(text, dim=True) if is_terminal else text)

    threading.Thread(target=tell, name="edgekv-requests", daemon=True).start()


class _Queued(logging.handlers.QueueHandler):
    def enqueue(self, record: logging.LogRecord) -> None:
        with suppress(Full):
            super().enqueue(record)
