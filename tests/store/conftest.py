"""A store ends with its test: its threads would go on writing, and log into the next test."""

from collections.abc import Iterator
from typing import Any

import pytest

from edgekv.store.store import PrefixStore


@pytest.fixture(autouse=True)
def _stores_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    opened: list[PrefixStore] = []
    initialise = PrefixStore.__init__

    def remember(store: PrefixStore, *arguments: Any, **settings: Any) -> None:
        initialise(store, *arguments, **settings)
        opened.append(store)

    monkeypatch.setattr(PrefixStore, "__init__", remember)
    yield
    for store in opened:
        store.close(0)
