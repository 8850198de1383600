"""`edgekv config`: the file of options, and where each value comes from."""

import importlib
import os
import re
import textwrap
from itertools import groupby
from typing import Any

import click
from click.core import ParameterSource

from edgekv.cli.common.caches import without_password
from edgekv.cli.common.config_file import ONLY_SAID, keys, use_config_file, variable_set
from edgekv.cli.common.config_path import COMMANDS, config_path
from edgekv.cli.common.examples import examples
from edgekv.cli.common.help import Group
from edgekv.cli.common.reference import values
from edgekv.cli.common.shared_options import SettingOption, option
from edgekv.cli.common.tables import NAME, Column, output_option, print_rows
from edgekv.common.errors import EXIT_OK, ConfigError
from edgekv.common.machine import default_threads
from edgekv.config.setting_table import SETTINGS, Setting

_MODULES = {"chat": "edgekv.cli.chat.command", "serve": "edgekv.cli.serve"}
_COLUMNS = [
    Column("option", "option", right=False, rank=NAME),
    Column("value", "value", right=False, rank=NAME, least=20),
    Column("source", "from", right=False, rank=8, least=8),
]
_WIDTH = 120
_SECRETS = {"api-key"}


def commands() -> dict[str, click.Command]:
    """The commands that read the file."""
    return {name: getattr(importlib.import_module(_MODULES[name]), name) for name in COMMANDS}


@click.group(cls=Group, epilog=examples(
    "edgekv config init",
    "edgekv config show",
))
def config() -> None:
    """The file of options of `edgekv chat` and `edgekv serve`.

    It is TOML: each key is a long option without its dashes, such as ctx or kv-budget. The command line goes first, then the
    environment, then the file.
    """


@config.command(epilog=examples(
    "edgekv config path",
    "EDGEKV_CONFIG=other.toml edgekv config path",
))
def path() -> int:
    """Print where the file is, or would be; EDGEKV_CONFIG names another."""
    click.echo(config_path())
    if not config_path().exists():
        click.echo("there is no such file yet; `edgekv config init` writes it", err=True)
    return EXIT_OK


@config.command(epilog=examples(
    "edgekv config init",
    "edgekv config init --force",
))
@option("--force", is_flag=True, envvar="EDGEKV_CONFIG_FORCE", help="Overwrite an existing file.")
def init(force: bool) -> int:
    """Write a file with every option and its help, all of them comments."""
    file = config_path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
        with os.fdopen(os.open(file, flags, 0o600), "w", encoding="utf-8") as out:  # it may later hold an API key
            out.write(template())
    except FileExistsError:
        raise ConfigError(f"there is a file {file}; edit it, or overwrite it with --force") from None
    except OSError as error:
        raise ConfigError(f"the file {file} cannot be written: {error.strerror}; EDGEKV_CONFIG names another") from None
    click.echo(file)
    return EXIT_OK


@config.command(context_settings={"ignore_unknown_options": True}, epilog=examples(
    "edgekv config show",
    "edgekv config show chat -o json",
    "edgekv config show serve --parallel 4 --ctx 8192",
))
@output_option("json", "csv", "md")
@click.argument("command", type=click.Choice(COMMANDS), default="serve")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def show(output: str, command: str, arguments: tuple[str, ...]) -> int:
    """Show the options of COMMAND, chat or serve, and where each value comes from.

    ARGUMENTS are those that would follow the command: `edgekv config show serve --parallel 4`. What llama.cpp's server would take from variables
    and files of its own comes last.
    """
    from edgekv.server.llama_settings import settings

    outer = click.Context(click.Group("edgekv"), info_name="edgekv")
    known = commands()
    use_config_file(outer, known)
    with outer, known[command].make_context(command, list(arguments), parent=outer) as inner:
        rows = [_row(name, parameter, inner) for name, parameter in keys(known[command]).items()]
    rows += [{"option": f"llama.cpp's {one.name}", "value": one.value, "source": one.source} for one in settings()]
    print_rows(rows, _COLUMNS, output)
    return EXIT_OK


def _row(name: str, parameter: click.Parameter, context: click.Context) -> dict[str, Any]:
    source = context.get_parameter_source(str(parameter.name))
    value = context.params.get(str(parameter.name))
    variable = variable_set(parameter)
    if source is ParameterSource.COMMANDLINE:
        origin = "command line"
    elif variable is not None:
        value, origin = os.environ[variable] if value is None else value, f"variable {variable}"
    elif source is ParameterSource.DEFAULT_MAP:
        origin = "file"
    else:
        return {"option": name, "value": _default(parameter, str(context.command.name)), "source": "default"}
    return {"option": name, "value": _shown(name, value), "source": origin}


def _shown(name: str, value: Any) -> str:
    if name in _SECRETS:
        return "..."
    if isinstance(value, bool):
        return str(value).lower()
    return without_password(str(value)) if name.endswith("url") else str(value)


def _default(parameter: click.Parameter, command: str) -> str | None:
    """The default as one would write it; None: there is none, or it depends, as the help says."""
    if not isinstance(parameter, SettingOption) or (text := parameter.setting.default_text) is None or re.match("[^,;]*, and ", text):
        return None
    setting = parameter.setting
    if setting.name == "threads":
        return str(default_threads())
    here = re.search(rf"\bin {command} (\w+)", text)  # "stop; in chat roll"
    value = here[1] if here else re.split("[,;]| in ", text)[0]
    if value in ("none", "memory") and setting.kind is not str and not setting.words:
        return None
    return value if " " not in value or value[0].isdigit() else None  # "auto", "1.0 GiB", and not "the file's"


def template() -> str:
    """The file with every setting as a comment."""
    lines = ["# Options of EdgeKV. Take the # off a line to set one.",
             "# The command line goes first, then the EDGEKV_* variables, then this file. `edgekv config show` says what is in force.", "",
             "# The GGUF file.  [default: the small model, where it is installed]", '#model = "FILE"', ""]
    for group, settings in groupby(SETTINGS, key=lambda setting: setting.group):
        lines += [f"# ---- {group} ----", ""]
        for setting in settings:
            if setting.name not in ONLY_SAID and (used_by := [name for name in COMMANDS if name in setting.where]):
                alone = "" if len(used_by) > 1 else f" ({used_by[0]} alone)"
                usual = "" if setting.default_text is None else f"  [default: {setting.default_text}]"
                lines += [*(f"# {line}" for line in textwrap.wrap(f"{setting.help}{alone}{usual}", _WIDTH)), f"#{setting.name} = {_example(setting)}", ""]
    return "\n".join(lines)


def _example(setting: Setting) -> str:
    """The default, or a placeholder in quotes."""
    if setting.kind is bool:
        return str(setting.off).lower()
    return f"{setting.default}" if isinstance(setting.default, (int, float)) else f'"{setting.default or "|".join(values(setting))}"'
