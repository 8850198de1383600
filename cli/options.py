"""Options that commands share. Each option of each command also reads an environment variable, which its help names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgekv.vocab import CacheType, KvMode

if TYPE_CHECKING:
    from edgekv.config import KvOptions

F = TypeVar("F", bound=Callable[..., Any])

ENV_PREFIX = "EDGEKV_"


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """`click.option` with the environment variable EDGEKV_<LONG NAME>: `--max-tokens` reads EDGEKV_MAX_TOKENS."""
    long = next(name for name in names if name.startswith("--"))
    settings.setdefault("envvar", ENV_PREFIX + long.split("/")[0].lstrip("-").replace("-", "_").upper())
    return click.option(*names, show_envvar=True, **settings)


def model_argument(function: F) -> F:
    """MODEL: the path of a GGUF file; none for the default model. Hand it to `model_path()`."""
    return click.argument("model", required=False, envvar=ENV_PREFIX + "MODEL", type=click.Path(path_type=Path))(function)


def model_path(model: Path | None) -> Path:
    """The model to use. Raises ModelError if none is named and the default one is not installed."""
    if model is not None:
        return model
    from edgekv.models import default_model

    return default_model()


def json_option(function: F) -> F:
    """`-o json`, as `output`: "table" or "json"."""
    return option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print.")(function)


threads_option = option("-t", "--threads", type=click.IntRange(min=1), help="CPU threads.  [default: one for each core]")

ctx_option = option(
    "-c", "--ctx", type=click.IntRange(min=1), metavar="TOKENS",
    help="Context length.  [default: what the model was trained for, as far as memory allows]",
)

_TYPES = click.Choice([t.value for t in CacheType])

_KV_OPTIONS = [
    ctx_option,
    option("--kv", type=click.Choice([mode.value for mode in KvMode]), default=KvMode.EXACT.value, show_default=True,
           help="; ".join(f"{mode.value}: {mode.description}" for mode in KvMode) + "."),
    threads_option,
    option("--type-k", type=_TYPES, default=CacheType.F16.value, show_default=True, help="Element type of the K cache."),
    option("--type-v", type=_TYPES, default=CacheType.F16.value, show_default=True, help="Element type of the V cache."),
]


def kv_options(function: F) -> F:
    """--ctx, --kv, --threads, --type-k, --type-v, as parameters ctx, kv, threads, type_k, type_v: see `make_kv_options()`."""
    for decorate in reversed(_KV_OPTIONS):
        function = decorate(function)
    return function


def make_kv_options(ctx: int | None, kv: str, threads: int | None, type_k: str, type_v: str, **more: Any) -> KvOptions:
    """The values of `kv_options()` as a KvOptions; an option that was not given keeps the default."""
    from edgekv.config import KvOptions

    given = {"n_ctx": ctx, "n_threads": threads, **more}
    return KvOptions.from_env(
        mode=KvMode(kv), type_k=CacheType(type_k), type_v=CacheType(type_v),
        **{name: value for name, value in given.items() if value is not None},
    )
