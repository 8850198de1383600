"""Options that commands share. Every option also reads an environment variable, which its help names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from edgekv.cli.common.choices import HUB, OF_OPTION, models
from edgekv.cli.common.number_types import FiniteNumber, WholeNumber
from edgekv.common.enums import KvMode
from edgekv.common.errors import ConfigError, ModelError
from edgekv.common.machine import MOST_THREADS
from edgekv.common.units import size
from edgekv.config import INSTEAD_OF, KvOptions, one_of_two, parse_token_bytes
from edgekv.config.setting_table import OF_KV, OLD, SETTINGS, Number, Setting, check_renamed, keyword_of, variable_of

if TYPE_CHECKING:
    from edgekv.prefix_cache.settings import RecallSettings

F = TypeVar("F", bound=Callable[..., Any])


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """`click.option` with the environment variable EDGEKV_<LONG NAME>: `--max-tokens` reads EDGEKV_MAX_TOKENS. edgekv.cli.common.choices
    completes it."""
    long = next(name for name in names if name.startswith("--"))
    if (values := OF_OPTION.get(long)) is not None:
        settings.setdefault("shell_complete", values)
    name = long.split("/")[0].lstrip("-")
    settings.setdefault("envvar", variable_of(name))
    added = click.option(*names, show_envvar=True, **settings)

    def add(function: F) -> F:
        function = added(function)
        for old in (old for old, new in OLD.items() if new == name):
            function = _former(old)(function)
        return function

    return add


def _former(old: str) -> Callable[[F], F]:
    """A hidden option for an old name, and its variable: with either the command ends with the sentence of `check_renamed`."""
    parameter = f"old_{keyword_of(old)}"

    def refuse(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        spelled = variable_of if ctx.get_parameter_source(parameter) is ParameterSource.ENVIRONMENT else "--{}".format
        if value is not None:
            check_renamed([spelled(old)], spelled)

    return click.option(f"--{old}", parameter, hidden=True, is_eager=True, expose_value=False, is_flag=False, flag_value="", envvar=variable_of(old),
                        callback=refuse)


model_argument = click.argument("model", required=False, envvar=variable_of("model"), type=click.Path(path_type=Path), shell_complete=models)
"""MODEL: the path of a GGUF file, a name of `edgekv models list`, or hf:USER/REPO[:QUANT]; None: the default model. Pass it to `model_path()`."""


def model_path(model: Path | None) -> Path:
    """The file of the model to use; one of Hugging Face's that is not here is fetched, if a person at a terminal agrees. Raises ModelError if there is
    none of that name, or if it would have to be fetched and nobody can be asked, EdgeKVError if it cannot be."""
    if model is None:
        from edgekv.models import default_model

        return default_model()
    if str(model).startswith(HUB):
        return _fetched(str(model))
    if model.exists() or model.suffix.lower() == ".gguf":
        return model
    from edgekv.models.local import find_local

    return find_local(str(model)).path


def _fetched(text: str) -> Path:
    from edgekv.models.hub import Address, kept, pull

    address = Address.parse(text)
    if (path := kept(address)) is not None:
        return path
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ModelError(f"{text} is not on this machine, and nobody can be asked here; `edgekv models pull {text}` fetches it")

    def agree(name: str, n_bytes: int) -> bool:
        return click.confirm(f"Fetch {name}, {size(n_bytes)}, from Hugging Face?", default=True, err=True)

    return pull(address, agree=agree)


threads_option = option("-t", "--threads", type=WholeNumber(1, MOST_THREADS), help="CPU threads.  [default: one for each core]")


# ---- options of the table of settings ---------------------------------------------------------------------------------------------


class Parsed(click.ParamType):
    """A value that a function reads; its ConfigError is the message."""

    def __init__(self, name: str, parse: Callable[[str], Any]):
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ConfigError as error:
            self.fail(f"{error}.", param, ctx)


AUTO = "auto"


def token_bounds(text: str) -> tuple[int, ...]:
    """ "8KiB,9KiB"; none for an empty text. Raises ConfigError."""
    return tuple(parse_token_bytes(part.strip()) for part in text.split(",") if text)


def _hosts(text: str) -> tuple[str, ...]:
    from edgekv.server.sites import parse_hosts

    return parse_hosts(text)


def _recall(text: str) -> RecallSettings:
    from edgekv.prefix_cache.settings import RecallSettings

    return RecallSettings(None if text.lower() == "ram" else Path(text).expanduser())


def parse_address(text: str) -> str:
    """The address of a shared server. Raises ConfigError."""
    from edgekv.prefix_cache.settings import check_shared

    check_shared(text)
    return text


_PARSERS: dict[str, Callable[[str], Any]] = {"hosts": _hosts, "recall": _recall, "address": parse_address}
_RESUMES: dict[str, Any] = {"is_flag": False, "flag_value": ""}  # --resume without a name


def _joined(_: click.Context, __: click.Parameter, lists: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    return tuple(host for hosts in lists for host in hosts)


class SettingOption(click.Option):
    """A setting as an option. Variables of KV options are read by `KvOptions.from_env`, for library and command line alike."""

    def __init__(self, *names: Any, setting: Setting, **more: Any):
        super().__init__(*names, **more)
        self.setting = setting

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return None if self.setting.keyword is not None else super().resolve_envvar_value(ctx)


def _type(setting: Setting) -> click.ParamType:
    kind = setting.kind
    if isinstance(kind, Number):
        if kind.whole:
            return WholeNumber(int(kind.least), None if kind.most is None else int(kind.most))
        return FiniteNumber(kind.least, kind.most, min_open=kind.above)
    if kind is Path:
        return click.Path(file_okay=setting.unit != "DIR", path_type=Path)
    if kind in (bool, str):
        return click.BOOL if kind is bool else click.STRING
    if setting.words:
        return click.Choice(setting.words)
    if isinstance(kind, str):
        return Parsed(kind, _PARSERS[kind])
    return Parsed(setting.name, lambda text: AUTO if (value := kind(text, setting.name)) is None else value)


def _as_option(setting: Setting) -> Callable[[F], F]:
    more: dict[str, Any] = _RESUMES if setting.name == "resume" else {"multiple": True, "callback": _joined} if setting.many else {}
    names = f"--{setting.name}/--no-{setting.name}" if setting.off else f"--{setting.name}"
    if setting.kind is bool:
        more = {"is_flag": True, "default": None if setting.off else False}
    elif setting.default is not None:
        more = {"default": setting.default, "show_default": True}
    usual = "" if setting.usual is None else f"  [default: {setting.usual}]"
    return option(*setting.short, names, cls=SettingOption, setting=setting, type=_type(setting), metavar=setting.unit, help=setting.help + usual, **more)


def settings_of(command: str) -> Callable[[F], F]:
    """The options of a command: each setting that is valid there, as a parameter."""
    def add(function: F) -> F:
        for setting in reversed(SETTINGS):
            if command in setting.where:
                function = _as_option(setting)(function)
        return function

    return add


# ---- what they become -------------------------------------------------------------------------------------------------------------


def with_measured(model: Path, kv: KvOptions, n_threads: int | None = None) -> KvOptions:
    """These options, with the types by layer if --kv-bytes needs them, and the errors of the model's heads if --target-error does. A bar shows the
    measurement."""
    needs_errors = kv.mode is KvMode.SPARSE and kv.selection.lacks_head_errors
    if not kv.cache.lacks_types and not needs_errors:
        return kv
    from edgekv import with_head_errors, with_layer_types
    from edgekv.cli.common.progress import progress_bar

    with progress_bar() as show:
        kv = with_layer_types(model, kv, show, n_threads)
        return with_head_errors(model, kv, show) if needs_errors else kv


def later_files(settings: dict[str, Any]) -> tuple[str, ...]:
    """Take the files that are loaded after the model out of `settings`, as options of llama.cpp's server."""
    named = ((name, settings.pop(keyword_of(name), None)) for name in ("mmproj", "lora", "control-vector", "model-draft"))
    return tuple(word for name, value in named if value is not None for word in (f"--{name}", str(value)))


def split_kv_options(settings: dict[str, Any], model: Path | None = None, n_slots: int = 1) -> dict[str, Any]:
    """Take the KV options and the context out of `settings`, as the fields kv, n_ctx, n_threads, n_gpu_layers and weights_from_disk of ServerOptions.
    If no mode is asked for, it is `device_mode.chosen_mode` for n_slots contexts of `model`; without a model `devices.measured_mode`.

    Values come from the command line, then from the environment, then from the file, then from the defaults of KvOptions. A line on standard
    error says why a GPU stays unused. Raises ConfigError, and CudaUnavailable if a GPU was asked for and cannot be used.
    """
    from edgekv.planning.device_mode import chosen_mode
    from edgekv.planning.devices import measured_mode, place
    from edgekv.tiering.names import check_names

    fields = {keyword_of(setting.name): field for field, setting in OF_KV.items() if setting.where}
    given = {field: value for name, field in fields.items() if (value := settings.pop(name)) is not None}
    context = click.get_current_context(silent=True)
    named = {field for name, field in fields.items()
             if field in given and (context is None or context.get_parameter_source(name) is ParameterSource.COMMANDLINE)}
    for one, others in INSTEAD_OF.items():
        for other in others:
            if other not in named and (one in named or os.environ.get(OF_KV[one].variable)):
                given.pop(other, None)  # the file's
    spelled = {field: f"--{OF_KV[field].name}" for field in fields.values()}.__getitem__
    one_of_two(given, spelled)
    automatic = [name for name in ("kv_budget", "kv_vram") if given.get(name) == AUTO]
    for name in automatic:
        del given[name]
    kv = KvOptions.from_env(**given)
    if automatic:  # None, which from_env() takes for an option that was not given
        kv = kv.with_(**dict.fromkeys(automatic))
    n_ctx = None if (said := settings.pop("ctx")) == AUTO else said
    placement = None
    if "mode" not in given and not os.environ.get(variable_of("kv")):
        placement = place(kv, model)  # the same for mode sparse
        kv = kv.with_(mode=measured_mode(placement) if model is None else chosen_mode(placement, model, kv, n_ctx, n_slots))
    # only options on the command line: a variable may have no effect
    kv.check_effect(named, spelled)
    check_names(kv.placement)
    placement = placement or place(kv, model)
    if placement.warning is not None:
        click.echo(f"warning: {placement.warning}", err=True)
    return {"kv": placement.in_force(kv, named), "n_ctx": n_ctx, "n_threads": settings.pop("threads"), "n_gpu_layers": settings.pop("gpu_layers"),
            "weights_from_disk": settings.pop("weights_from_disk")}
