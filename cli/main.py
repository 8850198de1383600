"""The `edgekv` command: a group that imports a command only when it runs, and the one place where errors become exit codes."""

import gc
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import edgekv
from edgekv.cli.common.choices import HUB
from edgekv.cli.common.examples import examples
from edgekv.cli.common.help import WIDEST, Formatter
from edgekv.cli.common.lazy_group import Commands, LazyGroup
from edgekv.common.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_RUNTIME, EdgeKVError

COMMANDS: Commands = {
    "chat": ("edgekv.cli.chat.command", "chat", "Chat in the terminal, or answer one prompt (-p)."),
    "serve": ("edgekv.cli.serve", "serve", "Serve a model to OpenAI-compatible clients."),
    "models": ("edgekv.cli.models", "models", "List, describe, fetch and synthesise models."),
    "plan": ("edgekv.cli.plan", "plan", "Does it fit, how fast will it be, which flags to use."),
    "doctor": ("edgekv.cli.doctor", "doctor", "What works on this machine, what does not, and why."),
    "bench": ("edgekv.cli.bench", "bench", "Speed and fidelity against llama.cpp, as llama-bench."),
    "lab": ("edgekv.cli.lab", "lab", "Quality, attention and policies, where it is installed."),
    "config": ("edgekv.cli.config", "config", "The file of options, and where each value comes from."),
    "cache": ("edgekv.cli.cache", "cache", "Conversations that a server keeps on disk."),
    "policies": ("edgekv.cli.policies", "policies", "The policies, prefetchers and budgets, with sources."),
    "run": ("edgekv.cli.run", "run", "A Python program whose llama_cpp.Llama is edgekv.Llama."),
    "completion": ("edgekv.cli.completion", "completion", "The script for completion in bash, zsh or fish."),
}

click.Context.formatter_class = Formatter


class _Edgekv(LazyGroup):
    table = COMMANDS
    groups = {"Run a model": ("chat", "serve", "models", "run"), "Before you start": ("plan", "doctor"), "Measure": ("bench", "lab"),
              "Settings": ("config", "cache", "policies", "completion")}

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage("edgekv", "COMMAND [MODEL] [OPTIONS]")
        formatter.write_usage("edgekv", "MODEL.gguf                   the same as edgekv chat MODEL.gguf", " " * len("Usage: "))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            near = [] if error.ctx is None else _known(error.ctx, error.option_name, error.possibilities or ())
            meant = f" Did you mean {' or '.join(near)}?" if near else ""
            raise click.NoSuchOption(error.option_name, f"No such option '{error.option_name}'.{meant}", None, error.ctx) from None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, ["chat", *args] if args[0].lower().endswith(".gguf") or args[0].startswith(HUB) else args)


def _known(ctx: click.Context, typed: str, near: Sequence[str]) -> list[str]:
    """The options that work of those `near` to what was typed. click takes old names for options too: the nearest gives way to its new one."""
    from edgekv.config.setting_table import OLD

    shown = {name for one in ctx.command.get_params(ctx) if isinstance(one, click.Option) and not one.hidden for name in one.opts}
    meant = [f"--{OLD.get(name[2:], name[2:])}" if name not in shown else name for name in near[:1]] + list(near[1:])
    return [name for name in dict.fromkeys(meant) if name in shown and name.startswith("--") == typed.startswith("--")]


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"edgekv {edgekv.__version__}")
        ctx.exit()


@click.group(cls=_Edgekv, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST}, epilog=examples(
    "edgekv chat",
    "edgekv plan model.gguf",
    "edgekv serve model.gguf --port 8080",
))
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version and exit."
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Long contexts at short-context speed, for any GGUF model.

    Each option also has a variable, such as EDGEKV_CTX; those of `chat` and `serve` may stand in a file (`edgekv config`).
    """
    from edgekv.cli.common import config_path

    if context.invoked_subcommand in config_path.COMMANDS and config_path.is_expected():
        from edgekv.cli.common.config_file import use_config_file
        from edgekv.cli.config import commands

        use_config_file(context, commands())


def main() -> NoReturn:
    """Run the command line; leave with 0, or the exit code of the error (see edgekv.common.errors)."""
    gc.set_threshold(50_000)  # what is imported stays: to look through it for garbage again and again takes an eighth of a start
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
        code = error.exit_code
        if type(error).show in (click.ClickException.show, click.UsageError.show):  # others print a help
            error = click.UsageError(_wrapped(error.format_message(), "Error: "), getattr(error, "ctx", None))
        error.show()
        return code
    except EdgeKVError as error:
        click.echo(f"edgekv: {_wrapped(str(error), 'edgekv: ')}", err=True)
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


def _wrapped(text: str, behind: str) -> str:
    """A message of an error that stands behind a word; on a terminal its lines break between words."""
    if not sys.stderr.isatty():
        return text
    import shutil
    import textwrap

    width = min(shutil.get_terminal_size().columns, WIDEST)
    lines = (textwrap.fill(behind * (not number) + line, width, break_long_words=False, break_on_hyphens=False)
             for number, line in enumerate(text.splitlines()))
    return "\n".join(lines).removeprefix(behind)


def _leave(code: int) -> NoReturn:
    server = sys.modules.get("edgekv.server.server")
    if server is not None and server.active() is not None:
        # A model is still being loaded, or the server does not stop: its thread can only die with the process.
        server.active().abandon()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
