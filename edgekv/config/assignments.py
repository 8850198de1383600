"""NAME=VALUE lists: settings of a policy, changes of bench modes, `--set`."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from edgekv.common.errors import ConfigError
from edgekv.common.units import SWITCH
from edgekv.config.setting_table import check_renamed, keyword_of

_ALLOWED: dict[Callable[[str], Any], str] = {bool: "on or off", int: "a whole number", float: "a number"}


def assigned(items: Iterable[str], kinds: Mapping[str, Callable[[str], Any]], said: str, noun: str = "setting") -> dict[str, Any]:
    """Name to value from `items`, NAME=VALUE each. kinds: the known names, each with a type or a function that reads its text. Raises
    ConfigError, which begins with `said`."""
    values: dict[str, Any] = {}
    for item in items:
        name, equals, text = (part.strip() for part in item.partition("="))
        if not equals or name not in kinds:
            check_renamed([name] if equals else [], keyword_of, f"{said}: ")
            allowed = f"write NAME=VALUE, with one of {', '.join(kinds)}" if kinds else f"there is no {noun} here"
            raise ConfigError(f"{said}: {item.strip()!r} is not a {noun}; {allowed}")
        kind = kinds[name]
        try:
            values[name] = SWITCH[text.lower()] if kind is bool else kind(text)
        except ConfigError:
            raise
        except (KeyError, ValueError):
            raise ConfigError(f"{said}: {name} is {text!r}; it must be {_ALLOWED[kind]}") from None
    return values


def split_at(mark: str, text: str) -> list[str]:
    """The parts of `text` between marks; a mark in brackets does not split."""
    return re.split(rf"{re.escape(mark)}(?![^(]*\))", text)


def split_modes(text: str) -> tuple[str, ...]:
    """The modes of a comma-separated list; a part such as `policy=lru` belongs to the mode before it."""
    names: list[str] = []
    for part in split_at(",", text):
        if names and ":" in names[-1] and "=" in part and ":" not in part:
            names[-1] += f",{part.strip()}"
        else:
            names.append(part.strip())
    return tuple(names)
