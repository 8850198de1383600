"""Sampled rows serve a reader with the same settings: a worse sample never passes for a better one."""

import numpy as np
import pytest
from support.prefix_rows import conversation, exact, reader
from support.stores import open_store, restore

from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Conversation, Reading, ReadWith, child_link
from edgekv.prefix_cache.store import PrefixStore

COARSE, FINE = ReadWith(sampled=b"resolution 20"), ReadWith(sampled=b"resolution 2000")
N_PROMPT = 300


@pytest.fixture(params=["ram", "disk", "remote"])
def store(request, tmp_path):
    """A store with blocks in one place only."""
    if request.param == "remote":
        return open_store(ram_bytes=0, url=request.getfixturevalue("server").url, url_timeout_s=20.0)
    return open_store(tmp_path, ram_bytes=0) if request.param == "disk" else open_store(ram_bytes=1 << 24)


def save(store: PrefixStore, tokens: np.ndarray, read_with: ReadWith) -> int:
    """Save a prompt, and tokens that were generated behind it."""
    readings = exact(tokens)
    readings[N_PROMPT:] = Reading.SAMPLED
    n_new = store.insert(Conversation(tokens, read_with=read_with), readings, reader(tokens, readings)).n_new
    store.flush()
    return n_new


def found(store: PrefixStore, tokens: np.ndarray, read_with: ReadWith) -> int:
    return sum(piece.n for piece in restore(store, tokens, 0, Reading.SAMPLED, read_with=read_with).pieces)


@pytest.mark.parametrize("n", [900, N_PROMPT + 50], ids=["whole and tail", "tail"])
def test_both_are_kept_beside_each_other(store, n):
    tokens = conversation(n)
    saved = [save(store, tokens, COARSE), save(store, tokens, FINE), save(store, tokens, FINE)]
    if not any(place.name == "remote" for place in store.places):  # no save asks a server for its blocks
        assert saved == [n, n - BLOCK_TOKENS, 0]  # the exact block is the same
    assert found(store, tokens, COARSE) == found(store, tokens, FINE) == n


def test_a_longer_block_of_other_settings_leaves_a_tail(store):
    short, long = conversation(N_PROMPT + 50), conversation(N_PROMPT + 90)
    assert np.array_equal(long[: len(short)], short)
    save(store, short, FINE)
    save(store, long, COARSE)
    assert found(store, short, FINE) == len(short)
    save(store, long, FINE)
    assert found(store, long, FINE) == len(long)


def test_settings_survive_on_the_disk(tmp_path):
    tokens = conversation(900)
    store = open_store(tmp_path, ram_bytes=0)
    save(store, tokens, FINE)
    store.close()
    again = open_store(tmp_path)  # with RAM, where restored blocks come
    assert found(again, tokens, COARSE) == BLOCK_TOKENS
    for _ in range(2):
        assert found(again, tokens, FINE) == 900
    assert again.stats().ram.hit_tokens >= 900 and again.stats().disk.n_refused == 0
    again.close()


def test_a_key_tells_settings_from_tokens():
    tokens = conversation(40)
    settings = tokens[:1].tobytes()
    keys = {child_link(bytes(16), Reading.SAMPLED, tokens, settings).key, child_link(bytes(16), Reading.SAMPLED, tokens).key,
            child_link(bytes(16), Reading.SAMPLED, np.concatenate([tokens[:1], tokens]), b"").key,
            child_link(bytes(16), Reading.SPARSE, tokens, settings).key}
    assert len(keys) == 4
