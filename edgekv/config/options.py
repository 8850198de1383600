"""All KV options of one context, from arguments and EDGEKV_* variables, and the checks that concern several groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from edgekv.common.enums import DeviceKind, KvMode, PromptReading
from edgekv.common.errors import ConfigError
from edgekv.common.units import size
from edgekv.config.groups import CacheOptions, EvictionOptions, PlacementOptions, SelectionOptions
from edgekv.config.setting_table import OF_KV, check_renamed, keyword_of, variable_of
from edgekv.config.values import choice

_MODES_OF = {**dict.fromkeys(("target_error", "prompts", "kv_budget", "prefetch"), (KvMode.SPARSE,)),
             **dict.fromkeys(("policy", "sample_budget"), (KvMode.SPARSE, KvMode.EVICT)), "evict_to": (KvMode.EVICT,),
             "kv_dir": (KvMode.SPARSE, KvMode.EXACT)}
"""The modes in which an option has an effect; options that are not named have one in all."""


INSTEAD_OF = {"target_error": ("sample_budget",), "sample_budget": ("target_error",), "kv_bytes": ("type_k", "type_v"), "type_k": ("kv_bytes",),
              "type_v": ("kv_bytes",)}
"""The options that an option excludes."""


def one_of_two(named: Mapping[str, Any], spelled: Callable[[str], str] = str) -> None:
    """Raise ConfigError if two options are `named` that exclude each other."""
    if named.get("target_error") is not None and named.get("sample_budget") is not None:
        error, budget = spelled("target_error"), spelled("sample_budget")
        raise ConfigError(f"{error} chooses a sample budget for each layer and head, and {budget} is one for all; give one of the two")
    if named.get("kv_bytes") is not None and (given := [name for name in ("type_k", "type_v") if named.get(name) is not None]):
        raise ConfigError(f"{spelled('kv_bytes')} chooses types for each layer, and {spelled(given[0])} is one for all; give one of the two")


@dataclass(frozen=True, init=False)
class KvOptions:
    """The options of a context's KV cache: the mode, and four groups of options.

    Give an option by its own name, whatever its group, or a whole group by the group's name:
    `KvOptions(mode="sparse", sample_budget=1000, policy="lru")`. Code that needs one group takes that group alone.
    """

    mode: KvMode = KvMode.EXACT
    cache: CacheOptions = CacheOptions()
    selection: SelectionOptions = SelectionOptions()
    eviction: EvictionOptions = EvictionOptions()
    placement: PlacementOptions = PlacementOptions()

    def __init__(self, **named: Any) -> None:
        """named: options and groups, by name. Raises ConfigError."""
        own = {one.name: named.pop(one.name, one.default) for one in fields(self)}
        one_of_two(named)
        in_groups: dict[str, dict[str, Any]] = {}
        for name, value in named.items():
            if name not in _GROUP_OF:
                check_renamed([name], keyword_of)
                raise ConfigError(f"there is no KV option {name!r}; the options are: {', '.join(option_names())}")
            if isinstance(value, str) and name in _NUMBERS:
                value = OF_KV[name].read(value, name)  # noqa: PLW2901 - a text is read as on the command line
            in_groups.setdefault(_GROUP_OF[name], {})[name] = value
        if named.get("sample_budget") is not None:
            in_groups[_GROUP_OF["target_error"]]["target_error"] = None  # the newer of the two counts
            if own["mode"] == KvMode.EVICT.value:
                in_groups.setdefault(_GROUP_OF["sample"], {})["sample"] = True
        for name, changes in in_groups.items():
            own[name] = replace(own[name], **changes)
        for name, value in own.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        """Check what the groups cannot check by themselves."""
        object.__setattr__(self, "mode", choice(KvMode, self.mode, "KV mode"))
        if self.mode is KvMode.EVICT and 0 < self.eviction.evict_to.tokens < self.cache.page_size:
            raise ConfigError(f"{self.eviction.evict_to.tokens} tokens are less than one page; keep at least {self.cache.page_size}")
        if self.mode is KvMode.EVICT and self.cache.kv_dir is not None:
            raise ConfigError(f"mode evict bounds K and V in memory, and the KV home is {self.cache.kv_dir}; leave one of the two out")

    def check_effect(self, named: Collection[str], spelled: Callable[[str], str] = str) -> None:
        """Raise ConfigError if one of the options `named` has no effect because of another. spelled(name): what a person calls it."""
        for name, modes in _MODES_OF.items():
            if name in named and self.mode not in modes:
                these = " and ".join(mode.value for mode in modes)
                raise ConfigError(f"{spelled(name)} works in mode{'s' * (len(modes) > 1)} {these} only, and the mode is "
                                  f"{self.mode.value}; use {spelled('mode')} {modes[0].value}")
        if self.mode is KvMode.SPARSE:
            one_of_two(dict.fromkeys(named, True), spelled)
        self._check_device(named, spelled)

    def _check_device(self, named: Collection[str], spelled: Callable[[str], str]) -> None:
        mode, device, prompts, kv_vram, kv_budget = (
            spelled(name) for name in ("mode", "attention_device", "prompts", "kv_vram", "kv_budget"))
        chosen = self.placement.attention_device
        if self.selection.prompts is PromptReading.SPARSE and chosen == DeviceKind.CUDA.value:
            raise ConfigError(f"{prompts} sparse works on the processor only, and the device is cuda; use {prompts} exact, or {device} cpu")
        if "kv_vram" in named and self.mode is KvMode.OFF:
            raise ConfigError(f"{kv_vram} does nothing in mode off, where llama.cpp keeps the whole KV cache in GPU memory; "
                              f"leave it out, or use {mode} exact or {mode} sparse")
        if "kv_vram" in named and chosen == DeviceKind.HOST.value:
            raise ConfigError(f"{kv_vram} is GPU memory, and the device is cpu; leave it out, or use {device} cuda")
        if "kv_budget" in named and self.cache.kv_dir is None:
            raise ConfigError(f"{kv_budget} is memory for rows of a KV home on a disk, and K and V lie in memory; leave it out, or name a folder with "
                              f"{spelled('kv_dir')} (on a GPU use {kv_vram})")

    @property
    def samples_kept(self) -> bool:
        """Mode evict reads a sample of what is kept."""
        return self.mode is KvMode.EVICT and self.eviction.sample

    @property
    def keep_tokens(self) -> int:
        """Tokens that mode evict keeps. Raises ConfigError if `evict_to` is in bytes: convert it first (`planning.fit.in_tokens`)."""
        keep = self.eviction.evict_to
        if keep.bytes and self.mode is KvMode.EVICT:
            raise ConfigError(f"convert {size(keep.bytes)} to tokens first; how many that are depends on the model")
        return keep.tokens

    @property
    def always_kept(self) -> int:
        """Tokens that mode evict never drops: the first and the newest, in whole pages."""
        return self.selection.sink_tokens + self.selection.recent_tokens + 2 * self.cache.page_size

    @classmethod
    def from_env(cls, **named: Any) -> KvOptions:
        """Defaults, overridden by EDGEKV_* variables, overridden by each named option that is not None. Raises ConfigError."""
        check_renamed(filter(os.environ.get, os.environ), variable_of)
        values: dict[str, Any] = {}
        bytes_count = os.environ.get("EDGEKV_KV_BYTES") and named.get("type_k") is None and named.get("type_v") is None
        left_out = ("type_k", "type_v") if bytes_count else ()
        for name, setting in OF_KV.items():
            others = (name, *INSTEAD_OF.get(name, ()))
            if all(named.get(other) is None for other in others) and name not in left_out and (text := os.environ.get(setting.variable)):
                values[name] = setting.read(text)
        values.update({name: value for name, value in named.items() if value is not None})
        return cls(**values)

    def with_(self, **named: Any) -> KvOptions:
        """These options with the named ones changed, also to None. Raises ConfigError."""
        return replace(self, **named)


_NUMBERS = ("kv_bytes", "kv_budget", "kv_vram", "page_size", "positions", "observe", "observe_prompt")
"""The options whose texts no group reads: numbers, and switches."""

_GROUPS: dict[str, type] = {one.name: type(one.default) for one in fields(KvOptions) if one.name != "mode"}
_GROUP_OF = {one.name: name for name, group in _GROUPS.items() for one in fields(group)}


def option_names() -> list[str]:
    """All options, by their own names."""
    return ["mode", *_GROUP_OF]


def option_kind(name: str) -> Any:
    """The type of an option, as its group declares it."""
    return KvMode if name == "mode" else get_type_hints(_GROUPS[_GROUP_OF[name]])[name]
