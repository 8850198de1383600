"""Prompts that stay for a time because a request asks for it, and those that stay in RAM alone."""

import time
from pathlib import Path

import numpy as np
import pytest
from support.prefix_rows import BLOCK_BYTES, conversation, exact, reader, state
from support.stores import n_restored, open_store, restore, save, save_through

from edgekv.prefix_cache.blocks import Conversation
from edgekv.prefix_cache.files import scan
from edgekv.prefix_cache.named import read_pins
from edgekv.prefix_cache.ram import Pins
from edgekv.prefix_cache.results import Saved
from edgekv.prefix_cache.store import PrefixStore


def with_clock(store: PrefixStore) -> list[float]:
    """The time."""
    now = [0.0]
    store.ram.pins = Pins(store.ram, lambda: now[0])
    return now


def pinned(store: PrefixStore, tokens: np.ndarray, expires: float, n: int | None = None) -> Saved:
    return store.insert(Conversation(tokens, stays=((n or len(tokens), expires),)), exact(tokens), reader(tokens))


def fill(store: PrefixStore, n_blocks: int, seed: int = 100) -> None:
    for one in range(n_blocks):
        save(store, conversation(256, seed + one))


@pytest.mark.parametrize(("n", "marks", "now", "stays"), [
    (700, [], 0, 0), (700, [(700, 60)], 0, 700), (700, [(700, 60)], 61, 0), (1024, [(300, 60)], 0, 512), (256, [(256, 60), (256, 10)], 30, 256),
], ids=["not pinned", "pinned", "its time is over", "the part up to the mark", "it does not get shorter"])
def test_a_pinned_prompt_stays_in_ram_until_its_time_is_over(n, marks, now, stays):
    store, prompt = open_store(ram_bytes=6 * BLOCK_BYTES), conversation(n, 1)
    clock = with_clock(store)
    save(store, prompt)
    for part, expires in marks:
        pinned(store, prompt, expires, part)
    clock[0] = now
    fill(store, 20)
    assert n_restored(store, prompt) == stays


def test_pins_that_fill_ram_let_nothing_in_and_this_is_said_once(caplog):
    store = open_store(ram_bytes=4 * BLOCK_BYTES)
    clock = with_clock(store)
    prompt = conversation(1024, 1)
    pinned(store, prompt, 60)
    for seed in (2, 3):
        saved = save(store, conversation(512, seed))
        assert (saved.n_new, saved.n_left_out) == (0, 512)
    assert sum("pinned prompts fill the RAM" in record.message for record in caplog.records) == 1
    assert n_restored(store, prompt) == 1024
    clock[0] = 61
    assert save(store, conversation(512, 2)).n_new == 512


def test_what_is_not_whole_is_not_pinned():
    store, prompt = open_store(ram_bytes=2 * BLOCK_BYTES), conversation(1024, 1)
    assert pinned(store, prompt, time.time() + 60).n_left_out and not store.ram.pins.keys()


def test_many_prompts_with_one_beginning_pin_it_once():
    store, system = open_store(), conversation(300)
    for seed in range(10):
        pinned(store, conversation(100, seed, after=system), time.time() + 60, n=300)
    assert len(store.ram.pins.keys()) == 2


def test_pins_that_fill_the_folder_let_nothing_in_and_this_is_said_once(tmp_path, caplog):
    store, prompt = open_store(tmp_path, folder_bytes=4 * BLOCK_BYTES), conversation(768, 1)
    pinned(store, prompt, time.time() + 60)
    assert store.flush(20)
    fill(store, 5)
    assert store.flush(20)
    assert sum("pinned prompts fill the folder" in record.message for record in caplog.records) == 1
    assert n_restored(open_store(tmp_path), prompt) == 768


def test_a_pin_is_taken_back(tmp_path):
    store, prompt = open_store(tmp_path, ram_bytes=4 * BLOCK_BYTES, folder_bytes=4 * BLOCK_BYTES), conversation(256, 1)
    saved = pinned(store, prompt, time.time() + 60)
    store.unpin(saved.chain[-1].key)
    fill(store, 20)
    assert store.flush(20) and read_pins(tmp_path) == [] and n_restored(store, prompt) == 0


@pytest.mark.parametrize("n", [40, 256, 300])
def test_snapshots_of_a_pinned_prompt_stay(n):
    store, prompt = open_store(ram_bytes=5 * BLOCK_BYTES), conversation(n, 1)
    with_clock(store)
    pinned(store, prompt, 60)
    assert store.insert_snapshot(Conversation(prompt[: n - 4]), exact(prompt[: n - 4]), state(prompt[: n - 4]))
    fill(store, 20)
    hit = restore(store, conversation(9, 2, after=prompt), 0, 0, goes_on=0)
    assert hit.snapshot is not None and hit.snapshot.position == n - 4


# ---- in RAM alone -----------------------------------------------------------------------------------------------------------------


def save_in_memory(store: PrefixStore, tokens: np.ndarray, **more) -> Saved:
    return store.insert(Conversation(tokens, in_memory=True, **more), exact(tokens), reader(tokens))


def snapshot_in_memory(store: PrefixStore, tokens: np.ndarray) -> bool:
    return store.insert_snapshot(Conversation(tokens, in_memory=True), exact(tokens), state(tokens))


def n_files(folder: Path) -> int:
    return len(list(scan(folder)))


def test_its_key_gets_into_no_pin_of_a_folder(tmp_path):
    """A pin moves to the block that continues its last; the folder does not have that block, and still pins its own."""
    store, prompt = open_store(tmp_path), conversation(300, 1)
    pinned(store, prompt, time.time() + 60)
    assert store.flush(20)
    (pin,) = read_pins(tmp_path)
    longer = save_in_memory(store, conversation(100, 2, after=prompt))
    assert store.flush(20) and read_pins(tmp_path) == [pin] and store.ram.pins.keys() >= {longer.chain[-1].key}


def test_it_takes_what_is_below_and_leaves_it_there(tmp_path):
    prompt = conversation(512, 1)
    store = open_store(tmp_path)
    save_through(store, prompt)
    store.close()
    fresh = open_store(tmp_path)
    assert save_in_memory(fresh, conversation(300, 2, after=prompt)).n_known == 512
    assert fresh.flush(20) and n_files(tmp_path) == 2
