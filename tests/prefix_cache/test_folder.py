"""The folder below RAM: its bound, its pins, and the time that what nobody uses stays."""

import os
import time

import pytest
from support.clients import until
from support.prefix_rows import conversation, exact, reader
from support.stores import n_restored, open_store
from support.stores import save_through as save

from edgekv.prefix_cache import writer
from edgekv.prefix_cache.blocks import Conversation
from edgekv.prefix_cache.files import scan


def test_other_files_in_the_folder_do_no_harm(tmp_path):
    save(open_store(tmp_path), conversation(600))
    (tmp_path / "notes.txt").write_text("mine")
    parent = next(tmp_path.rglob("*.kv")).parent
    for name in ("x.kv", f"{'0' * 32}-9-256.kv"):
        (parent / name).write_text("mine")
    (parent.parent / "y").mkdir()
    assert n_restored(open_store(tmp_path), conversation(600)) == 600


def test_the_bound_takes_what_was_not_used_for_longest_and_ends_before_beginnings(tmp_path):
    old, kept, new = (conversation(1024, seed) for seed in (1, 2, 3))
    store = open_store(tmp_path)
    for tokens in (old, kept):
        save(store, tokens)
        time.sleep(0.01)
    one = store.stats().disk.n_bytes // 8
    n_restored(store, kept)
    store.close()
    store = open_store(tmp_path, folder_bytes=10 * one + 100)
    save(store, new)
    assert store.stats().disk.n_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) <= 10 * one + 100
    fresh = open_store(tmp_path)
    assert n_restored(fresh, new) == n_restored(fresh, kept) == 1024
    assert 256 <= n_restored(fresh, old) <= 512


def test_a_conversation_longer_than_the_bound_keeps_its_beginning(tmp_path):
    tokens = conversation(1024)
    store = open_store(tmp_path, folder_bytes=26_000)
    save(store, tokens)
    assert n_restored(open_store(tmp_path), tokens) == 512
    n_written = store.stats().disk.n_written
    for _ in range(3):
        save(store, tokens)
    assert store.stats().disk.n_written == n_written  # no block of it takes another's place


@pytest.mark.parametrize("n_before", [0, 256])
def test_the_beginning_stays_while_the_rest_is_still_being_read(tmp_path, n_before):
    tokens = conversation(1280)
    save(open_store(tmp_path), tokens[:n_before])
    store = open_store(tmp_path, folder_bytes=26_000)
    read = reader(tokens)

    def slow(first, n):
        assert store.flush(20)  # the blocks before are written, and the folder does not know yet what chain they belong to
        return read(first, n)

    store.insert(Conversation(tokens), exact(tokens), slow)
    assert store.flush(20)
    assert n_restored(open_store(tmp_path), tokens) == 512


def test_what_nobody_used_for_so_long_leaves(tmp_path, monkeypatch):
    store = open_store(tmp_path, folder_ttl_s=3600.0)
    chains = [save(store, conversation(300, seed)).chain for seed in range(4)]
    store.pin(chains[3][-1].key, time.time() + 60)
    assert store.flush(20)
    store.close()

    def unused(*which: int) -> None:
        keys = {link.key for one in which for link in chains[one]}
        for file in scan(tmp_path):
            if file.link.key in keys:
                os.utime(file.path, (time.time() - 3700,) * 2)

    def there() -> set[int]:
        keys = {file.link.key for file in scan(tmp_path)}
        return {one for one, chain in enumerate(chains) if all(link.key in keys for link in chain)}

    unused(0, 3)
    fresh = open_store(tmp_path)
    assert there() == {0, 1, 2, 3}, "no time is set"
    fresh.close()
    monkeypatch.setattr(writer, "TIDY_S", 0.05)
    fresh = open_store(tmp_path, folder_ttl_s=3600.0)
    assert there() == {1, 2, 3} and fresh.stats().disk.n_evicted == 2
    assert n_restored(fresh, conversation(300, 1)) == 300
    unused(2)
    until(lambda: there() == {1, 3}, 20)
