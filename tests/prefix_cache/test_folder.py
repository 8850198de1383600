"""The folder below RAM: what survives a restart, what is shared, what is refused, and its bound."""

import json
import logging
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clients import until
from support.prefix_rows import LAYOUT, check_rows, conversation, exact, grow, identity, plans, reader
from support.stores import n_restored, open_store, restore
from support.stores import save_through as save

from edgekv.common.errors import ConfigError
from edgekv.prefix_cache import writer
from edgekv.prefix_cache.blocks import Conversation, Reading
from edgekv.prefix_cache.coming import InFlight
from edgekv.prefix_cache.files import scan
from edgekv.prefix_cache.folder import FolderPlace
from edgekv.prefix_cache.named import Pin, read_pins, remove_pin, write_pin

EXACT, _, SAMPLED, SPARSE = Reading
RAM = 1 << 30


def files(folder):
    return sorted(path for path in folder.rglob("*.kv"))


@pytest.fixture
def written(tmp_path):
    """A folder with one conversation of 600 tokens."""
    tokens = conversation(600)
    store = open_store(tmp_path)
    save(store, tokens)
    store.close()
    return tmp_path, tokens


def test_a_conversation_survives_a_restart(written):
    folder, tokens = written
    store = open_store(folder)
    restored = restore(store, conversation(50, 1, after=tokens), 0, EXACT)
    assert check_rows(restored, conversation(50, 1, after=tokens), 0, EXACT) == 600
    assert {piece.source for piece in restored.pieces} == {"disk"}
    assert {piece.source for piece in restore(store, tokens, 0, EXACT).pieces} == {"ram"}
    stats = store.stats()
    assert (stats.disk.hit_tokens, stats.ram.hit_tokens, stats.disk.n_blocks) == (600, 600, 3)
    assert stats.disk.n_bytes == sum(path.stat().st_size for path in files(folder))


def test_what_the_folder_has_is_not_read_again(written):
    folder, tokens = written
    calls: list = []
    assert save(open_store(folder), conversation(100, 1, after=tokens), calls=calls).n_known == 512
    assert calls == [(512, 188)]
    assert len(files(folder)) == 3  # the tail made room for the longer one


def test_two_stores_share_a_folder_as_they_go(tmp_path):
    one, other = open_store(tmp_path), open_store(tmp_path)
    for n in range(3):
        tokens = conversation(300, n)
        save(one if n % 2 else other, tokens)
        assert n_restored(one, tokens) == n_restored(other, tokens) == 300


def test_models_do_not_share(written):
    folder, tokens = written
    assert n_restored(open_store(folder, who=identity("another")), tokens) == 0


def test_near_miss_from_the_folder(written):
    folder, tokens = written
    asked = tokens.copy()
    asked[30] += 1
    nearly = restore(open_store(folder), asked, 0, EXACT).nearly
    assert nearly.position == 30 and nearly.n_lost == 570 and nearly.goes_on_alike


# ---- damage ------------------------------------------------------------------------------------------------------------------------


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(at: int):
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES = {
    "rows": flip(-200), "last byte": lambda data: data[:-1] + bytes([data[-1] ^ 128]), "header": flip(40), "header's checksum": flip(16),
    "cut": cut, "cut in its header": lambda data: data[:30], "empty": lambda data: b"", "one byte short": lambda data: data[:-1],
    "one byte long": lambda data: data + b"x", "length of its header": flip(15),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_damaged_file_is_refused_and_removed(written, caplog, damage, which):
    folder, tokens = written
    order = sorted(files(folder), key=lambda path: -path.stat().st_mtime_ns)
    order[which].write_bytes(DAMAGES[damage](order[which].read_bytes()))
    store = open_store(folder)
    with caplog.at_level(logging.WARNING, "edgekv"):
        assert n_restored(store, tokens) == 256 * which
        assert n_restored(store, tokens) == 256 * which
    assert len(caplog.records) == 1 and order[which].name in caplog.text
    assert store.stats().disk.n_refused == 1 and not order[which].exists()
    assert save(store, tokens).n_left_out == 0  # and it is written again
    assert n_restored(open_store(folder), tokens) == 600


@pytest.mark.parametrize("change", [lambda data: b"PNG" + data[3:], lambda data: data[:8] + b"\x7f" + data[9:]], ids=["foreign", "version"])
def test_a_foreign_file_is_left_alone_and_skipped(written, caplog, change):
    folder, tokens = written
    for path in files(folder):
        path.write_bytes(change(path.read_bytes()))
    store = open_store(folder)
    for _ in range(3):
        assert n_restored(store, tokens) == 0
    assert len(caplog.records) == 1 and len(files(folder)) == 3
    save(store, tokens)
    assert n_restored(open_store(folder), tokens) == 600  # the store wrote its blocks anew under its own names


def test_a_file_with_the_name_of_another_is_refused(written):
    folder, tokens = written
    first, second = sorted(files(folder), key=lambda path: -path.stat().st_mtime_ns)[:2]
    first.write_bytes(second.read_bytes())
    assert n_restored(open_store(folder), tokens) == 0


def test_other_files_in_the_folder_do_no_harm(written):
    folder, tokens = written
    (folder / "notes.txt").write_text("mine")
    parent = files(folder)[0].parent
    (parent / "x.kv").write_text("mine")
    (parent / f"{'0' * 32}-9-256.kv").write_text("mine")
    (parent.parent / "y").mkdir()
    assert n_restored(open_store(folder), tokens) == 600


# ---- the bound, and pins -----------------------------------------------------------------------------------------------------------


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
    assert store.stats().disk.n_bytes == sum(path.stat().st_size for path in files(tmp_path)) <= 10 * one + 100
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


def test_what_is_pinned_stays_until_it_expires(tmp_path):
    pinned, other = conversation(512, 1), conversation(512, 2)
    store = open_store(tmp_path, folder_bytes=50_000)
    save(store, pinned)
    leaf = restore(store, pinned, 0, EXACT)
    key = [file.link.key for file in scan(tmp_path)]
    leaves = set(key) - {file.link.parent for file in scan(tmp_path)}
    write_pin(tmp_path, Pin("mine", identity().root_key(), leaves.pop(), time.time() + 1000))
    for seed in range(3, 9):
        save(store, conversation(512, seed))
    save(store, other)
    fresh = open_store(tmp_path)
    assert n_restored(fresh, pinned) == n_restored(fresh, other) == 512 and len(leaf.pieces) == 2
    pin = read_pins(tmp_path)[0]
    write_pin(tmp_path, Pin(pin.name, pin.root, pin.key, time.time() - 1))
    assert read_pins(tmp_path) == []
    for seed in range(10, 13):
        save(store, conversation(512, seed))
    assert n_restored(open_store(tmp_path), pinned) == 0


def test_pins_are_named(tmp_path):
    with pytest.raises(ConfigError, match="letters"):
        write_pin(tmp_path, Pin("../mine", bytes(16), bytes(16), 0))
    write_pin(tmp_path, Pin("mine", bytes(16), bytes(16), time.time() + 9))
    (tmp_path / "pins" / "broken.json").write_text(json.dumps({"root": 3}))
    assert [pin.name for pin in read_pins(tmp_path)] == ["mine"]
    assert remove_pin(tmp_path, "mine") and not remove_pin(tmp_path, "mine")


# ---- any conversations -------------------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(plans(6), st.integers(13_000, 90_000))
def test_the_bound_of_the_folder_holds_and_rows_are_right(tmp_path_factory, plan, folder_bytes):
    folder = tmp_path_factory.mktemp("prefixes")
    store = open_store(folder, 20_000, folder_bytes=folder_bytes)
    for tokens, readings in grow(plan):
        save(store, tokens, readings)
        assert sum(os.path.getsize(path) for path in files(folder)) <= folder_bytes
        n_restored(store, tokens, 0, EXACT)
        other = open_store(folder, 0, folder_bytes=folder_bytes)
        n_restored(other, tokens, 0, SPARSE)
        other.close()  # an open one would write evicted blocks again, and the bound counts those of others a second late
    assert not list(folder.rglob(".tmp-*"))
    place = FolderPlace(identity(), folder, folder_bytes)
    assert all(block.read(range(2), InFlight(LAYOUT)) is not None for block in place.open([file.link for file in scan(folder)]))


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
