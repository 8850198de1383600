"""Rows that were fetched for a prompt that waits are used once, or given back once."""

import threading

import numpy as np
import pytest

from edgekv.prefix_cache.blocks import Conversation
from edgekv.prefix_cache.results import PrefixHit
from edgekv.server import fetching
from edgekv.server.fetching import Expected, Fetch

ASKED = Conversation(np.arange(64, dtype=np.int32), b"root")


class Store:
    """Counts what comes back."""

    def __init__(self) -> None:
        self.left: list[PrefixHit] = []

    def fetch(self, hit: PrefixHit, _worth: object) -> PrefixHit:
        return hit

    def release(self, hit: PrefixHit) -> None:
        self.left.append(hit)


@pytest.fixture
def store() -> Store:
    return Store()


def fetched(store: Store) -> Fetch:
    fetch = Fetch(ASKED, store, PrefixHit, lambda _hit: 0)
    fetch.join()
    return fetch


def test_time_ends_for_what_nobody_took(store, monkeypatch):
    monkeypatch.setattr(fetching, "EXPECTED_S", 0.01)
    expected, ended = Expected(), threading.Event()
    monkeypatch.setattr(store, "release", lambda hit: (store.left.append(hit), ended.set()))
    expected.add(fetched(store))
    assert ended.wait(10)
    assert expected.take(ASKED) is None and len(store.left) == 1


def test_time_that_ends_as_it_is_taken_gives_nothing_back(store):
    """The timer's thread may have begun before it was cancelled."""
    expected, fetch = Expected(), fetched(store)
    expected.add(fetch)
    assert expected.take(ASKED) is fetch
    expected.give_up(fetch)
    assert not store.left
    fetch.leave()
    fetch.leave()
    assert len(store.left) == 1


def test_what_is_left_over_is_given_back_once(store):
    expected = Expected()
    for _ in range(fetching.MOST_EXPECTED + 2):
        expected.add(fetched(store))
    assert len(store.left) == 2
    expected.close()
    assert len(store.left) == fetching.MOST_EXPECTED + 2
