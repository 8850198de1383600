"""`edgekv serve`: the same in-process server as the chat's, for other clients."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from edgekv.cli.common.options import kv_options, model_argument, model_path, option, split_kv_options
from edgekv.errors import EXIT_OK

if TYPE_CHECKING:
    from edgekv.serving.server import Server

_HELP = ("-h", "--help", "--usage")
_EXTRA = "edgekv.serve.extra"


class _PassesOn(click.Command):
    """Keeps what stands after `--` for llama.cpp's server; click would take the first of it for MODEL."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[_EXTRA] = args[:cut], tuple(args[cut + 1:])
        return super().parse_args(ctx, args)


@click.command(cls=_PassesOn, epilog="`edgekv serve -- --help` lists the options of llama.cpp's server.")
@model_argument
@option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is every address of this machine.")
@option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port to listen on; 0 picks a free one.")
@option("--api-key", metavar="KEY", help="Answer only requests that carry this key.")
@option("--alias", metavar="NAME", help="Name of the model for clients.  [default: the file's]")
@option("--parallel", type=click.IntRange(1, 256), default=1, show_default=True,
        help="Requests answered at the same time; each has its own context.")
@kv_options
@option("--log-file", type=click.Path(path_type=Path), help="Where llama.cpp's server writes its log; - for standard error.")
def serve(
    model: Path | None, host: str, port: int, api_key: str | None, alias: str | None, parallel: int, log_file: Path | None,
    **kv_settings: Any,
) -> int:
    """Serve MODEL to OpenAI-compatible clients until Ctrl-C or SIGTERM.

    MODEL is a GGUF file; without one, the default model. What stands after -- goes to llama.cpp's server as it is. Both ways of
    stopping it let it clean up, and leave with exit code 0.
    """
    extra = click.get_current_context().meta.get(_EXTRA, ())
    from edgekv.serving.options import try_extra
    from edgekv.serving.server import Server, ServerOptions

    if any(argument in _HELP for argument in extra):
        click.echo(try_extra(extra).stdout)
        return EXIT_OK
    server = Server(ServerOptions(
        model_path(model), **split_kv_options(kv_settings), alias=alias, host=host, port=port, parallel=parallel, api_key=api_key,
        extra=extra, log_file=log_file,
    ))
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a job that a script started with & ignores it from birth
        signal.signal(number, _interrupt)
    server.start()
    with server:
        try:
            _announce(server)
            server.wait()
        except KeyboardInterrupt:
            click.echo("stopping", err=True)
    return EXIT_OK


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _announce(server: Server) -> None:
    if server.context.note:
        click.echo(f"note: {server.context.note}", err=True)
    if server.options.api_key is None and server.is_public:
        click.echo("warning: anybody who reaches this machine can use the server; --api-key KEY keeps others out", err=True)
    from edgekv.cli.chat.kv import mode_summary

    context = f"{server.context.n_ctx:,} tokens of context" + (f" for each of {n}" if (n := server.options.parallel) > 1 else "")
    click.echo(f"serving {server.alias} at {server.url}/v1 ({context}, KV {mode_summary(server)}); Ctrl-C stops it", err=True)
    key = "..." if server.options.api_key else "none"
    click.echo(
        f"try: {Path(sys.executable).name} -c 'from openai import OpenAI; "
        f'print(OpenAI(base_url="{server.url}/v1", api_key="{key}").chat.completions.create('
        f'model="{server.alias}", messages=[{{"role": "user", "content": "Hello"}}]).choices[0].message.content)\'',
        err=True,
    )
