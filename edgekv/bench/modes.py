"""The modes that benchmarks compare: each is a set of changes to a context's KV options.

A mode is a registered name, or a name with further changes, such as `sparse:sample_budget=1000`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from edgekv import policies
from edgekv.common.enums import FULL, STOCK, STOCK_KERNELS, KvMode, PromptReading
from edgekv.common.errors import ConfigError
from edgekv.common.registry import Registry
from edgekv.common.units import parse_bytes, parse_share
from edgekv.config import CacheOptions, HeadErrors, KvOptions, option_kind, option_names
from edgekv.config.assignments import assigned, split_at
from edgekv.tiering.prefetch import PREFETCHERS


class BenchMode(Struct, frozen=True):
    """Changes to the KV options of the context."""

    changes: Mapping[str, Any]
    flash_attn: bool = True
    """False: the mode needs a context and a cache of its own, because V is stored transposed."""
    kept: float | None = None
    """Mode evict: the share of the visible tokens that it keeps; None: `evict_to` says how many."""
    destructive: bool = False
    """The mode drops cells: `Decoder.restore` undoes its tokens, a rewind does not."""

    @property
    def reads_itself(self) -> bool:
        """Whether the mode reads prompts in its own way, so that the cache differs from one filled with full attention."""
        return self.changes.get("prompts", PromptReading.EXACT) == PromptReading.SPARSE

    @property
    def figures(self) -> Mapping[str, float | None]:
        """The figures that the mode has by definition: full attention reads everything without error; the error of dropped pages is unknown."""
        if self.changes["mode"] is KvMode.EXACT:
            return {"error": 0.0, "attended_fraction": 1.0, "coverage": 1.0}
        if self.changes["mode"] is KvMode.EVICT:
            return {"error": None, "coverage": None}
        return {}

    def options(self, base: KvOptions, n_visible: int) -> KvOptions:
        """The options for `n_visible` visible tokens."""
        options = base.with_(**self.changes)
        return options if self.kept is None else options.with_(evict_to=max(round(self.kept * n_visible), options.always_kept))


MODES: Registry[BenchMode] = Registry("bench mode")

_NO_HIERARCHY = {"policy": "none", "kv_budget": 0}
"""Frees what a sparse mode keeps in memory, so that it costs later modes nothing."""

def _drops(changes: Mapping[str, Any]) -> bool:
    return changes["mode"] is KvMode.EVICT


def _add(name: str, mode: KvMode, description: str, **changes: Any) -> None:
    decides = mode in (KvMode.SPARSE, KvMode.EVICT)
    changes = {"mode": mode, "observe": mode is not KvMode.OFF, **({} if decides else _NO_HIERARCHY), **changes}
    MODES.add(name, BenchMode(changes, destructive=_drops(changes)), description)


_add(STOCK, KvMode.OFF, "stock llama.cpp: where times are measured the faster of the next two, which always are; elsewhere the first")
_add(STOCK_KERNELS[0], KvMode.OFF, "stock with flash attention")
MODES.add(STOCK_KERNELS[1], BenchMode({"mode": KvMode.OFF, "observe": False, **_NO_HIERARCHY}, flash_attn=False),
          "stock without flash attention, in a context of its own: V is stored transposed then")
_add(FULL, KvMode.EXACT, "every visible page")
_add("exact-unobserved", KvMode.EXACT, "exact without measuring attention mass", observe=False)
_add("sparse", KvMode.SPARSE, "the tokens that sketches say matter and a weighted sample of the others, with the options' defaults")
_add("evict", KvMode.EVICT, "what the policy kept, the rest dropped for good")


def find_mode(name: str) -> BenchMode:
    """The registered mode before the colon, with the changes after it. Raises ConfigError."""
    base, colon, text = name.partition(":")
    mode = MODES.get(base)
    if not colon:
        return mode
    named = assigned(split_at(",", text), {key: _reader(key) for key in CHANGEABLE}, f"bench mode {name!r}", "change")
    changes, kept = {**mode.changes, **named}, None
    try:
        if str(named.get("evict_to", "")).endswith("%"):
            kept = parse_share(changes.pop("evict_to"), "what is kept")
        options = KvOptions(**changes)
        options.check_effect(named.keys() - {"kv_budget"})  # whether there is a home is the request's
        changes["mode"] = options.mode
        policies.check_live(options.placement.policy)
        PREFETCHERS.get(options.placement.prefetch)
    except ConfigError as error:
        raise ConfigError(f"bench mode {name!r}: {error}") from None
    return replace(mode, changes=changes, kept=kept, destructive=_drops(changes))


def errors_for(modes: Iterable[BenchMode], model: Path, cache: Mapping[str, Any], n_threads: int,
               progress: Callable[[str, int, int], None] = lambda what, done, total: None) -> HeadErrors | None:
    """The errors of the model's heads, if one of the modes has a target error instead of a sample budget. cache: the options that its context is
    created with. Raises the errors of `edgekv.Llama`."""
    asked = [options for mode in modes if (options := mode.options(KvOptions.from_env(**cache), 0)).selection.target_error is not None]
    if not asked:
        return None
    from edgekv.llama import with_head_errors  # modes are told without llama_cpp

    found = (with_head_errors(model, kv, progress, n_threads=n_threads, n_threads_batch=n_threads) for kv in asked)
    return next((errors for kv in found if (errors := kv.selection.head_errors) is not None), None)


def in_order(modes: Sequence[str]) -> tuple[str, ...]:
    """The modes in order, each once: stock first, then full attention, then sparse modes."""
    first = (STOCK, FULL) if FULL in modes else (STOCK,)
    return tuple(dict.fromkeys((*first, *modes)))


def stock_kernels(modes: Sequence[str]) -> tuple[str, ...]:
    """The measured kernels among STOCK_KERNELS: both, unless `modes` name one of them and not STOCK."""
    named = tuple(name for name in STOCK_KERNELS if name in modes)
    return STOCK_KERNELS if STOCK in modes or not named else named


def with_stock(modes: Sequence[str]) -> dict[str, BenchMode]:
    """The modes to measure when `modes` take turns: stock's kernels first, then full attention."""
    names = (*stock_kernels(modes), *in_order(modes))
    return {name: find_mode(name) for name in names if name != STOCK}


def with_home_on_disk(modes: Sequence[str]) -> dict[str, BenchMode]:
    """The same with K and V on a disk, where stock does not keep them."""
    return {name: find_mode(name) for name in in_order(modes) if name != STOCK}


def check_turns(modes: Sequence[str]) -> None:
    """Raise ConfigError for a mode that cannot take turns with others."""
    for mode in modes:
        if find_mode(mode).destructive:
            raise ConfigError(f"{mode} cannot take turns here: it drops what the modes after it would read from the cache; "
                              "use `edgekv lab quality`, which restores the cache")


_FIXED = {option.name for option in fields(CacheOptions)} | {"head_errors"}
CHANGEABLE = tuple(name for name in option_names() if name not in _FIXED)
"""Options that a mode may change; the others are fixed when a context is created, or measured."""


def _reader(key: str) -> Callable[[str], Any]:
    """The function that parses the option's value."""
    kind = option_kind(key)
    if int in get_args(kind):  # bytes, or None for auto
        return lambda text: parse_bytes(text, key)
    return kind if kind in (bool, int, float) else str
