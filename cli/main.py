"""The `edgekv` command: a group that imports a command only when it runs, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import click

import edgekv
from edgekv.cli.common.examples import examples
from edgekv.cli.common.lazy_group import Commands, LazyGroup
from edgekv.common.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_RUNTIME, EdgeKVError

COMMANDS: Commands = {
    "chat": ("edgekv.cli.chat.command", "chat", "Chat with a model, or answer one prompt."),
    "serve": ("edgekv.cli.serve", "serve", "Serve a model to OpenAI-compatible clients."),
    "config": ("edgekv.cli.config", "config", "The file of options, and where each value comes from."),
    "cache": ("edgekv.cli.cache", "cache", "Look after the conversations that a server keeps on disk."),
    "plan": ("edgekv.cli.plan", "plan", "Say what a model needs of this machine, how fast it will be, and with which flags."),
    "doctor": ("edgekv.cli.doctor", "doctor", "Say what works on this machine, what does not, and why."),
    "policies": ("edgekv.cli.policies", "policies", "List the policies, prefetchers and budgets, with their sources."),
    "bench": ("edgekv.cli.bench", "bench", "Measure speed and fidelity against stock llama.cpp."),
    "lab": ("edgekv.cli.lab", "lab", "Study quality, attention and policies, where the laboratory is installed."),
    "models": ("edgekv.cli.models", "models", "Find, describe and fetch models; write ones of random weights."),
    "completion": ("edgekv.cli.completion", "completion", "Print the script for completion in bash, zsh or fish."),
}


class _Edgekv(LazyGroup):
    table = COMMANDS
    moved = {name: f"edgekv lab {name}" for name in ("heads", "quality", "trace", "sim", "report")}

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, ["chat", *args] if args[0].lower().endswith(".gguf") else args)


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"edgekv {edgekv.__version__}")
        ctx.exit()


@click.group(cls=_Edgekv, context_settings={"help_option_names": ["-h", "--help"]}, epilog=examples(
    "edgekv chat",
    "edgekv plan model.gguf",
    "edgekv serve model.gguf --port 8080",
))
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version and exit."
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Run GGUF models with a tiered KV cache.

    `edgekv chat` starts at once with the default model, and `edgekv MODEL.gguf` with that one. Every option can also be set by the
    environment variable that its help names, those of `chat` and `serve` also in a file (`edgekv config`).
    """
    from edgekv.cli.common.config_file import COMMANDS as CONFIGURED
    from edgekv.cli.common.config_file import use_config_file

    if context.invoked_subcommand in CONFIGURED:
        from edgekv.cli.config import commands

        use_config_file(context, commands())


def main() -> NoReturn:
    """Run the command line; leave with 0, or the exit code of the error (see edgekv.common.errors)."""
    edgekv.owns_process = True
    _open_missing_streams()
    _leave(_written(_run()))


def _open_missing_streams() -> None:
    """Open the standard streams that the process was started without: nothing to read, an output that fails, and nowhere for messages. Files that
    are opened later would get their numbers."""
    for name, flags, mode in (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, flags), mode, encoding="utf-8", errors="replace"))  # noqa: SIM115 - it lives as long as the process


def _written(code: int, more: str = "") -> int:
    """The exit code, when all of standard output is written, and `more`: Python would complain at its end."""
    try:
        print(end=more, flush=True)
    except OSError as error:
        if code == EXIT_OK and not isinstance(error, BrokenPipeError):
            click.echo(f"edgekv: standard output cannot be written: {error.strerror}", err=True)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return code or EXIT_RUNTIME
    return code


def _run() -> int:
    if "_EDGEKV_COMPLETE" in os.environ:  # a shell asks at a TAB
        from edgekv.cli.completion import register

        register()
    try:
        code: Any = cli.main(prog_name="edgekv", standalone_mode=False)
        return code if isinstance(code, int) else EXIT_OK
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except EdgeKVError as error:
        click.echo(f"edgekv: {error}", err=True)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        click.echo("edgekv: interrupted", err=True)
        return getattr(error.__cause__, "exit_code", EXIT_INTERRUPTED)  # click makes an Abort of a KeyboardInterrupt
    except BrokenPipeError:  # the reader of a pipe has left, e.g. `| head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - or Python complains again when it flushes
        return EXIT_RUNTIME
    except OSError:
        if _written(EXIT_OK, "\n") == EXIT_OK:  # it is not about standard output
            raise
        return EXIT_RUNTIME


def _leave(code: int) -> NoReturn:
    server = sys.modules.get("edgekv.server.server")
    if server is not None and server.active() is not None:
        # A model is still being loaded, or the server does not stop: its thread can only die with the process.
        server.active().abandon()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
