"""Blocks belong to conversations, and go with them."""

import stat
import time
from pathlib import Path

import numpy as np
import pytest
from support.calls import watch
from support.prefix_rows import conversation, identity
from support.stores import open_store, restore, save, save_through

from edgekv.prefix_cache import conversations
from edgekv.prefix_cache.blocks import Reading
from edgekv.prefix_cache.conversations import add_blocks, blocks_alone, forget, knows
from edgekv.prefix_cache.files import scan
from edgekv.prefix_cache.named import Pin, write_pin
from edgekv.prefix_cache.store import PrefixStore

COMMON = conversation(600, 1)
ONE, TWO = conversation(300, 2, after=COMMON), conversation(300, 3, after=COMMON)


@pytest.fixture
def store(tmp_path: Path) -> PrefixStore:
    return open_store(tmp_path, ram_bytes=1 << 20)


def keep(store: PrefixStore, tokens: np.ndarray, name: str | None) -> list[bytes]:
    saved = save_through(store, tokens)
    assert saved.n_left_out == 0, "tokens were left out"
    assert sum(link.n for link in saved.chain) == len(tokens), "the chain has another length"
    keys = [link.key for link in saved.chain]
    if name is not None and store.settings.folder is not None:
        add_blocks(store.settings.folder, name, keys)
    return keys


def n_found(store: PrefixStore, tokens: np.ndarray) -> int:
    return restore(store, tokens, 0, Reading.EXACT).n_tokens


def n_found_anew(store: PrefixStore, tokens: np.ndarray) -> int:
    """Tokens that a store with an empty RAM finds."""
    other = PrefixStore(store.identity, store.settings)
    n = n_found(other, tokens)
    other.close()
    return n


def delete(store: PrefixStore, folder: Path, name: str) -> int:
    store.evict(blocks_alone(folder, name))
    return forget(folder, name)


def test_what_others_share_stays(store, tmp_path):
    keep(store, ONE, "a1")
    keep(store, TWO, "b2")
    assert delete(store, tmp_path, "a1") > 300 * 36
    assert n_found(store, ONE) == 600 and n_found(store, TWO) == 900
    assert n_found_anew(store, ONE) == 600 and n_found_anew(store, TWO) == 900
    delete(store, tmp_path, "b2")
    assert not list(scan(tmp_path)) and n_found(store, TWO) == 0
    assert not knows(tmp_path, "a1") and not knows(tmp_path, "b2")


def test_all_turns_and_branches_go(store, tmp_path):
    """A longer block replaces a turn's last one; an answer that was made again is a branch."""
    for tokens in (COMMON[:300], COMMON, ONE, TWO):
        keep(store, tokens, "a1")
    delete(store, tmp_path, "a1")
    assert not list(scan(tmp_path)) and n_found(store, TWO) == 0


def test_what_was_not_noted_goes_with_what_it_follows(store, tmp_path):
    """A process was killed between the save and the note."""
    keep(store, COMMON, "a1")
    keep(store, ONE, None)
    delete(store, tmp_path, "a1")
    assert not list(scan(tmp_path)) and n_found(store, ONE) == 0


def test_what_waits_for_the_writer_is_not_written(store, tmp_path, monkeypatch):
    watch(monkeypatch, store.places[0], "write", lambda _block: time.sleep(0.05))
    saved = save(store, ONE)
    add_blocks(tmp_path, "a1", [link.key for link in saved.chain])
    delete(store, tmp_path, "a1")
    assert store.flush(10) and not list(scan(tmp_path))


def test_what_is_pinned_stays(store, tmp_path):
    keys = keep(store, ONE, "a1")
    write_pin(tmp_path, Pin("mine", identity().root_key(), keys[1], time.time() + 1000))
    delete(store, tmp_path, "a1")
    assert n_found_anew(store, ONE) == 512


def test_the_note_is_for_the_owners_eyes(store, tmp_path):
    keep(store, ONE, "a1")
    (path,) = (tmp_path / "conversations").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_damaged_notes_and_names_that_are_none(tmp_path):
    (tmp_path / "conversations").mkdir()
    (tmp_path / "conversations" / "a1.json").write_text("[1, {")
    assert blocks_alone(tmp_path, "a1") == set() and forget(tmp_path, "a1") == 0 and not knows(tmp_path, "a1")
    for name in ("../x", "", "A"):
        with pytest.raises(ValueError, match="not the name"):
            conversations.forget(tmp_path, name)
