"""Options that commands share. Every option also reads an environment variable, which its help names."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from edgekv.cli.common.choices import OF_OPTION, Complete, gguf_files, items, models
from edgekv.common.enums import CacheType, Drafting, KvMode, PromptReading, SketchKind, WhenFull
from edgekv.common.errors import ConfigError
from edgekv.common.units import parse_bytes
from edgekv.config import (
    AUTO_DEVICE,
    DEVICES,
    INSTEAD_OF,
    Attend,
    CacheOptions,
    EvictionOptions,
    Keep,
    KvOptions,
    PlacementOptions,
    SelectionOptions,
    one_of_two,
    parse_error,
    parse_home,
    parse_resolution,
    parse_token_bytes,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

ENV_PREFIX = "EDGEKV_"


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """`click.option` with the environment variable EDGEKV_<LONG NAME>: `--max-tokens` reads EDGEKV_MAX_TOKENS. edgekv.cli.common.choices
    completes it."""
    long = next(name for name in names if name.startswith("--"))
    if (values := OF_OPTION.get(long)) is not None:
        settings.setdefault("shell_complete", values)
    settings.setdefault("envvar", ENV_PREFIX + long.split("/")[0].lstrip("-").replace("-", "_").upper())
    return click.option(*names, show_envvar=True, **settings)


def _model(names: Complete) -> Callable[[F], F]:
    return click.argument("model", required=False, envvar=ENV_PREFIX + "MODEL", type=click.Path(path_type=Path), shell_complete=names)


model_argument = _model(gguf_files)
"""MODEL: the path of a GGUF file; None: the default model. Pass it to `model_path()`."""
model_or_name_argument = _model(models)
"""The same, or a name of `edgekv models list`."""


def model_path(model: Path | None) -> Path:
    """The model to use. Raises ModelError if none is named and the default one is not installed."""
    if model is not None:
        return model
    from edgekv.models import default_model

    return default_model()


threads_option = option("-t", "--threads", type=click.IntRange(min=1), help="CPU threads.  [default: one for each core]")




def when_full_option(default: str) -> Callable[[F], F]:
    """The treatment of a full context: the value of a WhenFull; None: not given. default: for the help text."""
    return option("--when-full", type=_choices(WhenFull), help="When a conversation no longer fits into its context. "
                  + "; ".join(f"{one.value}: {one.description}" for one in WhenFull) + f".  [default: {default}]")


def _recall(text: str) -> Any:
    from edgekv.prefix_cache.settings import RecallSettings

    return RecallSettings(None if text.lower() == "ram" else Path(text).expanduser())


def recall_option(function: F) -> F:
    """Where what rolls out of a full context goes: a RecallSettings; None where nothing was said."""
    return option("--recall", metavar="ram|DIR", type=Parsed("recall", _recall),
                  help="Keep what rolls out of a full context, and bring it back before a message that is near it; a quarter of the context is for that. "
                       "ram: in the memory of the prefix cache; DIR: in a folder too, which outlives the process and reveals conversations.  "
                       "[default: it is gone]")(function)


def _draft(text: str) -> Any:
    from edgekv.server.drafts import parse_draft

    return parse_draft(text)


def draft_option(function: F) -> F:
    """Where drafts come from: a Drafting, or the path of a draft model; None where nothing was said."""
    return option("--draft", metavar="ngram|off|FILE", type=Parsed("draft", _draft),
                  help="Tokens to guess and check together with the next one; the answer is the same. "
                       + "; ".join(f"{one.value}: {one.description}" for one in Drafting)
                       + "; FILE: a smaller model with the same vocabulary guesses.  [default: ngram in modes exact and sparse on a processor; off "
                         "for models with recurrent layers and with a projector]")(function)


# ---- how the KV cache is kept and attended --------------------------------------------------------------------------------------


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


class _KvOption(click.Option):
    """An option whose variable `KvOptions.from_env` reads, for library and command line alike; here only the help names it."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        return None


AUTO = "auto"


class _Tokens(click.IntRange):
    """A number of tokens, or auto for None."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if value == AUTO else super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return items([AUTO], incomplete)


def _budget(text: str) -> int | str:
    n_bytes = parse_bytes(text, "the KV budget")
    return AUTO if n_bytes is None else n_bytes


def _vram(text: str) -> int | str:
    n_bytes = parse_bytes(text, "the KV budget in GPU memory")
    return AUTO if n_bytes is None else n_bytes


def token_bounds(text: str) -> tuple[int, ...]:
    """ "8KiB,9KiB"; none for an empty text. Raises ConfigError."""
    return tuple(parse_token_bytes(part.strip()) for part in text.split(",") if text)


def _kv_option(*names: str, **settings: Any) -> Callable[[F], F]:
    return option(*names, cls=_KvOption, **settings)


def _choices(kind: type[Enum]) -> click.Choice:
    return click.Choice([member.value for member in kind])


_KV_FIELDS = {
    "kv": "mode", "resolution": "resolution", "error": "error", "kv_prompts": "prompts", "sketch": "sketch", "attend": "attend", "kv_budget": "kv_budget",
    "policy": "policy", "prefetch": "prefetch", "keep": "keep", "page_tokens": "page_tokens", "type_k": "type_k", "type_v": "type_v", "device": "device",
    "kv_vram": "kv_vram", "kv_bytes": "kv_bytes", "home": "home",
}
"""Parameter: the KV option that it sets."""

_KV_OPTIONS = [
    option("-c", "--ctx", type=_Tokens(min=1), metavar="TOKENS|auto",
           help="Context length.  [default: auto, what the model was trained for, as far as memory allows; in mode evict a million "
                "tokens]"),
    _kv_option("--kv", type=_choices(KvMode), help="; ".join(f"{mode.value}: {mode.description}" for mode in KvMode)
               + ".  [default: sparse; exact on a GPU that gains little, and on a processor without AVX2]"),
    _kv_option("--resolution", type=Parsed("resolution", parse_resolution), metavar="C",
               help="Modes sparse and evict: a token with more than 1/C of a head's attention is read for certain. The others are sampled, with "
                    "weights for the unread ones. Twice the C reads some 40 % more, with an error some 40 % smaller. Contexts of up "
                    f"to {SelectionOptions.exact_tokens} tokens are attended whole. Without it mode evict reads all that is kept.  "
                    f"[default: {SelectionOptions.resolution:g}]"),
    _kv_option("--error", type=Parsed("error", parse_error), metavar="PERCENT",
               help="Mode sparse, instead of --resolution: the allowed error of a head's output against full attention, estimated and on average, e.g. "
                    "2%. Each layer and KV head gets a resolution for it, by a measurement made once for a model, in the time that a prompt of "
                    f"5,000 tokens takes.  [default: none; at resolution {SelectionOptions.resolution:g} a head's error is 1 to 6 %]"),
    _kv_option("--kv-prompts", type=_choices(PromptReading),
               help="Mode sparse: the tokens that a prompt's tokens attend. "
                    + "; ".join(f"{reading.value}: {reading.description}" for reading in PromptReading)
                    + f".  [default: {SelectionOptions.prompts.value}]"),
    _kv_option("--kv-budget", type=Parsed("kv_budget", _budget), metavar=f"BYTES|{AUTO}",
               help="Mode sparse: size of the arena, fast memory for copies of hot pages, e.g. 512MiB; on a GPU --kv-vram sets it. With --home: memory "
                    "for copies of the rows that are read most lately.  "
                    f"[default: {AUTO}; a processor has none, as it gains nothing there; with --home three quarters of what is free, of which "
                    "16 MiB at least stay free, and none where K and V fit there whole]"),
    _kv_option("--keep", type=Parsed("keep", Keep.parse), metavar="TOKENS|BYTES",
               help="Mode evict: how much of each conversation (slot) is kept, whatever its length, e.g. 4096 or 64MiB; its K and V take no more "
                    f"memory than that.  [default: {EvictionOptions.keep}]"),
    _kv_option("--device", type=click.Choice(DEVICES),
               help="Where attention runs. cuda: on the GPU, or an error that says why not; cpu: everything on the processor, the "
                    f"weights too; {AUTO_DEVICE}: on the GPU if one can be used.  [default: {PlacementOptions.device}]"),
    _kv_option("--kv-vram", type=Parsed("kv_vram", _vram), metavar=f"BYTES|{AUTO}",
               help="GPU memory for the KV cache, e.g. 2GiB: sketches and tables of the whole context, a buffer for prompts, and "
                    "copies of hot pages in the rest. All pages stay in host memory.  "
                    f"[default: {AUTO}, the memory that the weights leave, less a margin]"),
    option("--gpu-layers", type=click.IntRange(min=0), metavar="N",
           help="Layers of the model in GPU memory, for a model that does not fit; with fewer than all of them attention runs on the "
                "processor.  [default: all of them if there is a GPU]"),
    _kv_option("--sketch", type=_choices(SketchKind),
               help="Mode sparse: the summary of keys that selects tokens. "
                    + "; ".join(f"{kind.value}: {kind.description}" for kind in SketchKind)
                    + f".  [default: {SelectionOptions.sketch.value}]"),
    _kv_option("--attend", type=Parsed("attend", Attend.parse), metavar="PERCENT|TOKENS",
               help="Mode sparse with --sketch none: how much of the context each head attends, the pages with the best scores, e.g. 10% "
                    f"or 1024.  [default: {SelectionOptions.attend}]"),
    _kv_option("--policy", metavar="NAME+...",
               help="Modes sparse and evict: what scores pages, one or several of ema, anchor, recent, h2o, snapkv, ...: `edgekv policies` "
                    "lists them.  "
                    f"[default: {PlacementOptions.policy}]"),
    _kv_option("--prefetch", metavar="NAME",
               help="Mode sparse: what predicts the pages wanted next; one of none, previous, neighbour, rope, random.  "
                    f"[default: {PlacementOptions.prefetch}]"),
    _kv_option("--page-tokens", type=int, metavar="TOKENS",
               help=f"Tokens of a page, a multiple of 16.  [default: {CacheOptions.page_tokens}]"),
    threads_option,
    option("--weights-from-disk", is_flag=True,
           help="Load a model whose weights are larger than the free memory, which is refused otherwise: they are then read from the disk "
                "again for every token."),
    _kv_option("--home", type=Parsed("folder", parse_home), metavar="DIR",
               help="A folder on a disk for K and V, for contexts that are larger than memory, in modes sparse and exact on the processor. They lie in a "
                    "file without a name, whose space is taken at the start; it ends with the process.  [default: memory]"),
    _kv_option("--type-k", type=_choices(CacheType), help=f"Element type of the K cache.  [default: {CacheOptions.type_k.value}]"),
    _kv_option("--type-v", type=_choices(CacheType), help=f"Element type of the V cache.  [default: {CacheOptions.type_v.value}]"),
    _kv_option("--kv-bytes", type=Parsed("bytes", parse_token_bytes), metavar="SIZE|auto",
               help="Instead of two types: the most bytes of K and V of a token, in all layers together, e.g. 24KiB; auto: as few as stay within twice "
                    "stock's own noise. Each layer gets q8_0 or q4_0, by what the model loses there, which is measured once; on the processor."),
]


def kv_options(function: F) -> F:
    """Add --ctx, --threads, --weights-from-disk and the options of KvOptions as parameters: see `split_kv_options()`."""
    for one in reversed(_KV_OPTIONS):
        function = one(function)
    return function


def with_measured(model: Path, kv: KvOptions, n_threads: int | None = None) -> KvOptions:
    """These options, with the types by layer if --kv-bytes needs them, and the errors of the model's heads if --error does. A bar shows the
    measurement."""
    needs_errors = kv.mode is KvMode.SPARSE and kv.selection.lacks_head_errors
    if not kv.cache.lacks_types and not needs_errors:
        return kv
    from edgekv import with_head_errors, with_layer_types
    from edgekv.cli.common.progress import progress_bar

    with progress_bar() as show:
        kv = with_layer_types(model, kv, show, n_threads)
        return with_head_errors(model, kv, show) if needs_errors else kv


def split_kv_options(settings: dict[str, Any], model: Path | None = None, n_slots: int = 1) -> dict[str, Any]:
    """Take the values of `kv_options()` out of `settings`, as the fields kv, n_ctx, n_threads, n_gpu_layers and weights_from_disk of ServerOptions.
    If no mode is asked for, it is `device_mode.chosen_mode` for n_slots contexts of `model`; without a model `devices.measured_mode`.

    Values come from the command line, then from the environment, then from the file, then from the defaults of KvOptions. A line on standard
    error says why a GPU stays unused. Raises ConfigError, and CudaUnavailable if a GPU was asked for and cannot be used.
    """
    from edgekv.planning.device_mode import chosen_mode
    from edgekv.planning.devices import measured_mode, place
    from edgekv.tiering.names import check_names

    given = {field: value for name, field in _KV_FIELDS.items() if (value := settings.pop(name)) is not None}
    context = click.get_current_context(silent=True)
    named = {field for name, field in _KV_FIELDS.items()
             if field in given and (context is None or context.get_parameter_source(name) is ParameterSource.COMMANDLINE)}
    for one, others in INSTEAD_OF.items():
        for other in others:
            if other not in named and (one in named or os.environ.get(f"{ENV_PREFIX}{one.upper()}")):
                given.pop(other, None)  # the file's
    spelled = {field: f"--{name.replace('_', '-')}" for name, field in _KV_FIELDS.items()}.__getitem__
    one_of_two(given, spelled)
    automatic = [name for name in ("kv_budget", "kv_vram") if given.get(name) == AUTO]
    for name in automatic:
        del given[name]
    kv = KvOptions.from_env(**given)
    if automatic:  # None, which from_env() takes for an option that was not given
        kv = kv.with_(**dict.fromkeys(automatic))
    placement = None
    if "mode" not in given and not os.environ.get(f"{ENV_PREFIX}KV"):
        placement = place(kv)  # the same for mode sparse
        kv = kv.with_(mode=measured_mode(placement) if model is None else chosen_mode(placement, model, kv, settings["ctx"], n_slots))
    # only options on the command line: a variable may have no effect
    kv.check_effect(named, spelled)
    check_names(kv.placement)
    if (warning := (placement or place(kv)).warning) is not None:
        click.echo(f"warning: {warning}", err=True)
    return {"kv": kv, "n_ctx": settings.pop("ctx"), "n_threads": settings.pop("threads"), "n_gpu_layers": settings.pop("gpu_layers"),
            "weights_from_disk": settings.pop("weights_from_disk")}
