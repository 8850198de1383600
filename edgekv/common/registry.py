"""Named things a person can choose from, with a sentence about each."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from edgekv.common.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps a name to a thing and its one-line description; an unknown name is a ConfigError that lists the known ones."""

    def __init__(self, noun: str):
        self.noun = noun
        self._entries: dict[str, tuple[T, str, str]] = {}

    def add(self, name: str, thing: T, description: str, source: str = "") -> T:
        """source: where the idea comes from, in a few words."""
        if name in self._entries:
            raise ValueError(f"{self.noun} {name!r} is registered twice")
        self._entries[name] = (thing, description, source)
        return thing

    def get(self, name: str) -> T:
        try:
            return self._entries[name][0]
        except KeyError:
            raise ConfigError(f"there is no {self.noun} {name!r}; choose one of: {', '.join(self._entries)}") from None

    def describe(self, name: str) -> str:
        self.get(name)
        return self._entries[name][1]

    def source(self, name: str) -> str:
        self.get(name)
        return self._entries[name][2]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)
