"""A store ends with its test: its threads would go on writing, and log into the next test. And no test waits for the disk."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from edgekv.prefix_cache.store import PrefixStore


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


@pytest.fixture(autouse=True)
def _no_test_loses_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test could tell what `os.fsync` did. A descriptor that is not open is refused all the same."""
    monkeypatch.setattr(os, "fsync", os.fstat)
