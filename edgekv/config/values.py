"""The values of KV options: how they are read, and what their errors say."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from edgekv.common.errors import ConfigError
from edgekv.common.units import MOST_TOKENS, parse_bytes, parse_share, parse_tokens
from edgekv.config.layer_types import NEAR_STOCK

E = TypeVar("E", bound=Enum)

_MOST_ERROR = 0.5
_MOST_BUDGET = 1e9  # single precision cannot tell smaller shares from nothing


class Keep(Struct, frozen=True):
    """The bound of mode evict: tokens, or bytes of K and V together."""

    tokens: int = 4096
    bytes: int = 0
    """Counts instead of the tokens where it is not 0, until `planning.fit.in_tokens` converts it."""

    @classmethod
    def parse(cls, value: Keep | str | int) -> Keep:
        """ "4096" is a number of tokens, "64MiB" (with a unit) of bytes. Raises ConfigError."""
        if isinstance(value, Keep):
            return value
        text = str(value).strip()
        if n_tokens := parse_tokens(text):
            return cls(tokens=n_tokens)
        if text[:1].isdigit() and not text.isdigit():
            with suppress(ConfigError):
                if n_bytes := parse_bytes(text):
                    return cls(tokens=0, bytes=n_bytes)
        raise ConfigError(f"what is kept is {text!r}; write tokens such as 4096, {MOST_TOKENS:,} at most, or bytes such as 64MiB")

    def __str__(self) -> str:
        return f"{self.bytes}B" if self.bytes else f"{self.tokens}"


def choice(kind: type[E], value: E | str, noun: str) -> E:
    """`value` as a member of `kind`. Raises ConfigError, which lists the allowed values."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"there is no {noun} {value!r}; use one of: {', '.join(str(member.value) for member in kind)}") from None


def parse_sample_budget(value: str | float, name: str = "sample budget", such_as: float = 2000) -> float:
    """A number of at least 1. Raises ConfigError."""
    try:
        budget = float(value)
        if 1 <= budget <= _MOST_BUDGET:
            return budget
    except (TypeError, ValueError):
        pass
    raise ConfigError(f"the {name} is {value!r}; it must be a number from 1 to {_MOST_BUDGET:g}, such as {such_as:g}")


def parse_target_error(value: str | float | None, name: str = "target error") -> float | None:
    """ "1%" and 0.01 are the same error; None is none. Raises ConfigError."""
    if value is None:
        return None
    try:
        error = parse_share(str(value))
        if 0 < error <= _MOST_ERROR:
            return error
    except ConfigError:
        pass
    raise ConfigError(f"the {name} is {value!r}; it must be a share above 0% and up to {100 * _MOST_ERROR:g}%, such as 2% or 0.02")


def parse_token_bytes(text: str, name: str = "the size of K and V of a token") -> int:
    """ "24KiB" as bytes, "auto" as NEAR_STOCK. Raises ConfigError."""
    such_as = "24KiB, or auto"
    n_bytes = parse_bytes(text, name, such_as)
    if n_bytes == 0:
        raise ConfigError(f"{name} is {text!r}; write bytes such as {such_as}")
    return NEAR_STOCK if n_bytes is None else n_bytes


def parse_kv_dir(value: str | Path | None) -> Path | None:
    """A folder; None is memory. Raises ConfigError for an empty name."""
    if value is None:
        return None
    if not str(value).strip():
        raise ConfigError("the KV home has no name; name a folder on a disk, or leave it out")
    return Path(value).expanduser()
