"""Values of options and arguments, for shell completion. Modules that know the names are imported only at the TAB."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from edgekv.prefix_cache.listing import Chain

Complete = Callable[[click.Context, click.Parameter, str], list["CompletionItem"]]
"""A function for click's `shell_complete=`: context, parameter, and the typed part of the value."""

HUB = "hf:"
"""What a MODEL of Hugging Face's begins with."""

GGUF = "gguf"
"""A type of CompletionItem, beside click's "file" and "dir": GGUF files and folders, which the shell finds."""

TEXTS = ("prose", "code", "dialogue")
"""As in edgekv.bench.text, which would load the libraries."""


def items(values: Mapping[str, str | None] | Iterable[str], incomplete: str, separator: str = "") -> list[CompletionItem]:
    """The `values` that begin with the last part of `incomplete`, each with the rest of `incomplete` in front; a mapping gives their help."""
    from click.shell_completion import CompletionItem

    start = incomplete.rfind(separator) + 1 if separator else 0
    helps = values if isinstance(values, Mapping) else dict.fromkeys(values)
    return [CompletionItem(incomplete[:start] + value, help=text) for value, text in helps.items() if value.startswith(incomplete[start:])]


def gguf_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type=GGUF)]


def model_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of `edgekv models list`."""
    from edgekv.models.local import local_models

    return items({model.name: model.source for model in local_models()}, incomplete)


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names and files."""
    return [*model_names(ctx, param, incomplete), *gguf_files(ctx, param, incomplete)]


def shapes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from edgekv.models.shapes import SHAPES

    return items(SHAPES.keys(), incomplete)


def conversations(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of kept chats, the newest first."""
    from edgekv.cli.chat.kept import KeptChats, kept_folder

    return items(KeptChats(kept_folder()).names(), incomplete)


def stored(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """IDs of the conversations in the folder of --cache-dir."""
    return items({chain.id: f"{chain.name}, {chain.n_tokens:,} tokens" for chain in _chains(ctx)}, incomplete)


def stored_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the models of the stored conversations."""
    return items(sorted({chain.name for chain in _chains(ctx)}), incomplete)


def _chains(ctx: click.Context) -> list[Chain]:
    from edgekv.prefix_cache.listing import list_chains
    from edgekv.prefix_cache.settings import default_folder

    return list_chains(ctx.params.get("folder") or default_folder())


def pins(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names that pin stored conversations."""
    from edgekv.prefix_cache.named import read_pins
    from edgekv.prefix_cache.settings import default_folder

    return items([pin.name for pin in read_pins(ctx.params.get("folder") or default_folder())], incomplete)


def _registered(module: str, name: str, separator: str = "") -> Complete:
    """Names of a registry, joined by the separator."""
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        registry = getattr(import_module(module), name)
        return items({one: registry.describe(one) for one in registry}, incomplete, separator)

    return complete


def _texts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [*items(TEXTS, incomplete), CompletionItem(incomplete, type="file")]


def _auto(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return items(["auto"], incomplete)


OF_OPTION: dict[str, Complete] = {
    "--kv-budget": _auto, "--kv-vram": _auto, "--policy": _registered("edgekv.policies", "POLICIES", "+"),
    "--prefetch": _registered("edgekv.tiering.prefetch", "PREFETCHERS"), "--modes": _registered("edgekv.bench.modes", "MODES", ","),
    "--text": _texts, "--model": gguf_files, "--ctx": _auto, "--resume": conversations,
}
"""Completions of options that mean the same in every command. click itself completes choices, files and folders."""
