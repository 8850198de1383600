"""The KV options of one context, from arguments and EDGEKV_* variables."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TypeVar

from edgekv.errors import ConfigError
from edgekv.vocab import PAGE_TOKENS, CacheType, KvMode

E = TypeVar("E", bound=Enum)


@dataclass(frozen=True)
class KvOptions:
    """How a context's KV cache is kept and attended."""

    mode: KvMode = KvMode.EXACT
    page_tokens: int = PAGE_TOKENS
    observe: bool = True
    type_k: CacheType = CacheType.F16
    type_v: CacheType = CacheType.F16

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", choice(KvMode, self.mode, "KV mode"))
        object.__setattr__(self, "type_k", choice(CacheType, self.type_k, "K cache type"))
        object.__setattr__(self, "type_v", choice(CacheType, self.type_v, "V cache type"))
        if not isinstance(self.page_tokens, int) or self.page_tokens < 16 or self.page_tokens % 16 or self.page_tokens > 4096:
            raise ConfigError(f"page_tokens is {self.page_tokens!r}; it must be a multiple of 16 from 16 to 4096")

    @classmethod
    def from_env(cls, **overrides) -> KvOptions:
        """Defaults, then EDGEKV_KV, EDGEKV_PAGE_TOKENS, EDGEKV_OBSERVE, EDGEKV_TYPE_K and EDGEKV_TYPE_V, then every override that
        is not None."""
        values: dict = {}
        for name, variable, convert in _VARIABLES:
            if text := os.environ.get(variable):
                values[name] = convert(text, variable)
        values.update({name: value for name, value in overrides.items() if value is not None})
        if unknown := set(values) - {field.name for field in fields(cls)}:
            raise ConfigError(f"there is no KV option {sorted(unknown)[0]!r}; the options are: "
                              f"{', '.join(field.name for field in fields(cls))}")
        return cls(**values)

    def with_(self, **changes) -> KvOptions:
        return replace(self, **changes)


def choice(kind: type[E], value: E | str, noun: str) -> E:
    """`value` as a member of `kind`; a ConfigError lists what is allowed."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"there is no {noun} {value!r}; use one of: {', '.join(str(member.value) for member in kind)}") from None


def _integer(text: str, variable: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{variable}={text} is not a whole number") from None


def _boolean(text: str, variable: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    try:
        return known[text.lower()]
    except KeyError:
        raise ConfigError(f"{variable}={text} is neither on nor off") from None


def _text(text: str, variable: str) -> str:
    return text


_VARIABLES = (
    ("mode", "EDGEKV_KV", _text),
    ("page_tokens", "EDGEKV_PAGE_TOKENS", _integer),
    ("observe", "EDGEKV_OBSERVE", _boolean),
    ("type_k", "EDGEKV_TYPE_K", _text),
    ("type_v", "EDGEKV_TYPE_V", _text),
)
