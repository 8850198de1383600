"""Options that commands share. Each option of each command also reads an environment variable, which its help names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from edgekv.vocab import CacheType, KvMode

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


threads_option = option("-t", "--threads", type=click.IntRange(min=1), help="CPU threads.  [default: one for each core]")

_TYPES = click.Choice([t.value for t in CacheType])

_KV_OPTIONS = [
    option("-c", "--ctx", type=click.IntRange(min=1), metavar="TOKENS",
           help="Context length.  [default: what the model was trained for, as far as memory allows]"),
    option("--kv", type=click.Choice([mode.value for mode in KvMode]), default=KvMode.EXACT.value, show_default=True,
           help="; ".join(f"{mode.value}: {mode.description}" for mode in KvMode) + "."),
    threads_option,
    option("--type-k", type=_TYPES, default=CacheType.F16.value, show_default=True, help="Element type of the K cache."),
    option("--type-v", type=_TYPES, default=CacheType.F16.value, show_default=True, help="Element type of the V cache."),
]


def kv_options(function: F) -> F:
    """--ctx, --kv, --threads, --type-k, --type-v, as parameters ctx, kv, threads, type_k, type_v: see `split_kv_options()`."""
    for decorate in reversed(_KV_OPTIONS):
        function = decorate(function)
    return function


def split_kv_options(settings: dict[str, Any]) -> dict[str, Any]:
    """Take the values of `kv_options()` out of `settings`, as the fields kv, n_ctx and n_threads of ServerOptions."""
    from edgekv.config import KvOptions

    kv = KvOptions.from_env(mode=settings.pop("kv"), type_k=settings.pop("type_k"), type_v=settings.pop("type_v"))
    return {"kv": kv, "n_ctx": settings.pop("ctx"), "n_threads": settings.pop("threads")}
