"""Blocks whose rows lie in a slot: what becomes of them when the slot needs the cells."""

import numpy as np
import pytest
from support.prefix_rows import BLOCK_BYTES, InSlot, check_rows, conversation, exact, reader
from support.stores import n_restored, open_store, restore

from edgekv.prefix_cache.blocks import Conversation, Reading
from edgekv.prefix_cache.store import PrefixStore

TOKENS = conversation(1024)


def hold(store: PrefixStore, tokens: np.ndarray = TOKENS) -> list[InSlot]:
    """Insert a conversation that lies in a slot, and return its rows there."""
    held: list[InSlot] = []
    read = reader(tokens)

    def rows(first: int, n: int) -> InSlot:
        held.append(InSlot(read(first, n), n))
        return held[-1]

    store.insert(Conversation(tokens), exact(tokens), rows)
    return held


def take(held: list[InSlot]) -> None:
    for rows in held:
        rows.needed()
        assert not rows.held


def in_ram(store: PrefixStore) -> tuple[int, int, int]:
    stats = store.stats()
    return stats.ram.n_blocks, stats.ram.n_bytes, stats.n_in_slots


def test_what_ram_has_no_room_for_goes_from_the_end():
    store = open_store(ram_bytes=3 * BLOCK_BYTES)
    other = conversation(300, 1)
    take(hold(store, other))
    take(hold(store))
    assert in_ram(store) == (3, 3 * BLOCK_BYTES, 0)
    assert n_restored(store, TOKENS) == 768 and n_restored(store, other) == 0


def test_a_hit_gets_its_rows_although_ram_has_no_room():
    store = open_store(ram_bytes=BLOCK_BYTES)
    held = hold(store)
    hit = restore(store, TOKENS, 0, Reading.EXACT, in_part=True)
    take(held)
    assert check_rows(hit, TOKENS, 0, Reading.EXACT) == 1024
    assert in_ram(store) == (1, BLOCK_BYTES, 0)
    store.release(hit, 4)
    assert n_restored(store, TOKENS) == 256


def test_rows_that_cannot_be_copied_hold_nothing():
    def fail(layers: range, n_bytes: int) -> np.ndarray:
        raise MemoryError

    store = open_store()
    held = hold(store)
    held[1].read = fail
    with pytest.raises(MemoryError):
        held[1].needed()
    take(held)
    assert not held[1].held and n_restored(store, TOKENS) == 256
    assert in_ram(store) == (3, 3 * BLOCK_BYTES, 0)


@pytest.mark.parametrize("ram_bytes", [0, 1 << 30])
def test_places_get_rows_from_the_slot(tmp_path, ram_bytes):
    """They take no RAM on their way; without RAM nothing is copied for the slot either."""
    store = open_store(tmp_path, ram_bytes)
    held = hold(store)
    assert store.flush(20)
    assert store.stats().ram.n_bytes == 0 and store.stats().disk.n_blocks == 4
    if ram_bytes:
        take(held)
    assert store.stats().ram.n_blocks == (4 if ram_bytes else 0) and n_restored(store, TOKENS) == 1024
    store.close()
