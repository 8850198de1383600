"""The file of options: TOML, one key for each long option of `edgekv chat` and `edgekv serve`, below variables and command line."""

import difflib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from edgekv.cli.common.choices import HUB
from edgekv.cli.common.config_path import VARIABLE, config_path
from edgekv.cli.common.shared_options import Parsed
from edgekv.common.errors import ConfigError
from edgekv.config.setting_table import check_renamed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ONLY_SAID = {"prompt"}
"""Options of a single call, which the file cannot set."""
_READ = "edgekv.config_file"


def use_config_file(context: click.Context, commands: Mapping[str, click.Command]) -> None:
    """Take the defaults of `commands`, which run below `context`, from the file. Raises ConfigError."""
    values = read(commands)
    if values is None:
        return
    context.meta[_READ] = config_path()
    context.default_map = {name: _defaults(command, values) for name, command in commands.items()}


def file_read() -> Path | None:
    """The file that this call took defaults from; None: no file."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_READ)


def keys(command: click.Command) -> dict[str, click.Parameter]:
    """The file's possible keys for a command, with their parameters."""
    return {key(parameter): parameter for parameter in command.params
            if parameter.name not in ONLY_SAID and not getattr(parameter, "is_eager", False)}


def key(parameter: click.Parameter) -> str:
    """The long option's name without its dashes; an argument's name."""
    long = [name for name in parameter.opts if name.startswith("--")]
    return (long or parameter.opts)[0].lstrip("-")


def read(commands: Mapping[str, click.Command]) -> dict[str, Any] | None:
    """The file's keys and values, checked; None: no file. Raises ConfigError: one sentence with the file's name."""
    path = config_path()
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        if os.environ.get(VARIABLE):
            raise ConfigError(f"there is no file {path}, which {VARIABLE} names; `edgekv config init` writes it") from None
        return None
    except OSError as error:
        raise ConfigError(f"the file of options {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the file of options {path} is not UTF-8 text") from None
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the file of options {path} is not TOML: {error}") from None
    known = {name: parameter for command in commands.values() for name, parameter in keys(command).items()}
    return {name: _checked(path, name, value, known) for name, value in found.items()}


def _checked(path: Path, name: str, value: Any, known: dict[str, click.Parameter]) -> Any:
    if name not in known:
        check_renamed([name.replace("_", "-")], str, f"{path}: ")
        near = difflib.get_close_matches(name.replace("_", "-"), known, n=1)
        advice = f"did you mean {near[0]}?" if near else "`edgekv config show` lists those there are"
        raise ConfigError(f"{path}: there is no option {name}; {advice}")
    parameter = known[name]
    allowed, noun = _kind(parameter)
    if not isinstance(value, allowed) or isinstance(value, bool) and bool not in allowed:
        raise ConfigError(f"{path}: {name} is {value!r}; it must be {noun}")
    if isinstance(parameter.type, click.Path) and value != "-" and not (name == "model" and _is_name(path.parent, str(value))):
        value = str(path.parent / Path(str(value)).expanduser())  # relative to the file's folder, not to where the command runs
    if bool in allowed:
        return value
    try:
        parameter.type.convert(str(value), parameter, None)
    except click.BadParameter as error:
        raise ConfigError(f"{path}: {name}: {error.message.rstrip('.')}") from None
    return str(value)


def _is_name(folder: Path, model: str) -> bool:
    """Whether it is a name of `edgekv models list` or an address, and no file."""
    return model.startswith(HUB) or Path(model).suffix.lower() != ".gguf" and not (folder / Path(model).expanduser()).exists()


def _kind(parameter: click.Parameter) -> tuple[tuple[type, ...], str]:
    """The TOML types that a parameter accepts, and their name for a person."""
    if getattr(parameter, "is_flag", False):
        return (bool,), "true or false"
    if isinstance(parameter.type, (click.IntRange, click.types.IntParamType)):
        return (int,), "a whole number"
    if isinstance(parameter.type, click.FloatRange):
        return (int, float), "a number"
    if isinstance(parameter.type, Parsed):
        return (str, int, float), 'text in quotes such as "512MiB", or a number'
    return (str,), "text in quotes"


def _defaults(command: click.Command, values: dict[str, Any]) -> dict[str, Any]:
    """A command's part of click's default_map. Options whose variable is set are left out, also where it is read later (EDGEKV_KV)."""
    return {str(parameter.name): [values[name]] if parameter.multiple else values[name] for name, parameter in keys(command).items()
            if name in values and not variable_set(parameter)}


def variable_set(parameter: click.Parameter) -> str | None:
    """The name of a parameter's environment variable, where that is set."""
    names = [parameter.envvar] if isinstance(parameter.envvar, str) else list(parameter.envvar or ())
    return next((name for name in names if os.environ.get(name)), None)
