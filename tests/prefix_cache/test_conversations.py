"""Blocks belong to conversations, and go with them."""

import stat
import time
from pathlib import Path

import numpy as np
import pytest
from support.calls import watch
from support.prefix_rows import conversation, identity
from support.stores import n_restored, open_store, save, save_through

from edgekv.prefix_cache import conversations
from edgekv.prefix_cache.conversations import add_blocks, blocks_alone, forget, knows
from edgekv.prefix_cache.files import scan
from edgekv.prefix_cache.named import Pin, write_pin
from edgekv.prefix_cache.store import PrefixStore

COMMON = conversation(600, 1)
ONE, AGAIN, TWO = (conversation(300, seed, after=COMMON) for seed in (2, 4, 3))


@pytest.fixture
def store(tmp_path: Path) -> PrefixStore:
    return open_store(tmp_path, ram_bytes=1 << 20)


def keep(store: PrefixStore, folder: Path, tokens: np.ndarray, name: str) -> list[bytes]:
    keys = [link.key for link in save_through(store, tokens).chain]
    add_blocks(folder, name, keys)
    return keys


def delete(store: PrefixStore, folder: Path, name: str) -> int:
    store.evict(blocks_alone(folder, name))
    return forget(folder, name)


def test_all_turns_and_branches_go_and_what_others_share_stays(store, tmp_path):
    """A longer block replaces a turn's last one; an answer that was made again is a branch."""
    for tokens, name in ((COMMON[:300], "a1"), (COMMON, "a1"), (ONE, "a1"), (AGAIN, "a1"), (TWO, "b2")):
        keep(store, tmp_path, tokens, name)
    assert delete(store, tmp_path, "a1") > 2 * 300 * 36
    other = open_store(tmp_path)
    for where in (store, other):
        assert [n_restored(where, tokens) for tokens in (ONE, AGAIN, TWO)] == [600, 600, 900]
    other.close()  # one that is open writes what it has in RAM again where the file goes while it marks it as used
    delete(store, tmp_path, "b2")
    assert not list(scan(tmp_path)) and n_restored(store, TWO) == 0
    assert not knows(tmp_path, "a1") and not knows(tmp_path, "b2")


def test_what_was_not_noted_goes_with_what_it_follows(store, tmp_path):
    """A process was killed between the save and the note."""
    keep(store, tmp_path, COMMON, "a1")
    save_through(store, ONE)
    delete(store, tmp_path, "a1")
    assert not list(scan(tmp_path)) and n_restored(store, ONE) == 0 and store.stats().ram.n_blocks == 0


def test_what_waits_for_the_writer_is_not_written(store, tmp_path, monkeypatch):
    watch(monkeypatch, store.places[0], "write", lambda _block: time.sleep(0.05))
    saved = save(store, ONE)
    add_blocks(tmp_path, "a1", [link.key for link in saved.chain])
    delete(store, tmp_path, "a1")
    assert store.flush(10) and not list(scan(tmp_path))


def test_what_is_pinned_stays(store, tmp_path):
    keys = keep(store, tmp_path, ONE, "a1")
    write_pin(tmp_path, Pin("mine", identity().root_key(), keys[1], time.time() + 1000))
    delete(store, tmp_path, "a1")
    assert n_restored(open_store(tmp_path), ONE) == 512


def test_the_note_is_for_the_owners_eyes(store, tmp_path):
    keep(store, tmp_path, ONE, "a1")
    (path,) = (tmp_path / "conversations").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_damaged_notes_and_names_that_are_none(tmp_path):
    (tmp_path / "conversations").mkdir()
    (tmp_path / "conversations" / "a1.json").write_text("[1, {")
    assert blocks_alone(tmp_path, "a1") == set() and forget(tmp_path, "a1") == 0 and not knows(tmp_path, "a1")
    for name in ("../x", "", "A"):
        with pytest.raises(ValueError, match="not the name"):
            conversations.forget(tmp_path, name)
