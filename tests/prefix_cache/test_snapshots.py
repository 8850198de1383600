"""Snapshots in RAM: found by their tokens, useful only with their rows, bounded."""

import numpy as np
import pytest
from support import stores
from support.prefix_rows import BLOCK_BYTES, LAYOUT, check_rows, conversation, exact, reader, state
from support.stores import open_store, save, snapshots_in

from edgekv.prefix_cache.blocks import NOTHING_SAID, Conversation, Reading, ReadWith
from edgekv.prefix_cache.results import PrefixHit
from edgekv.prefix_cache.store import PrefixStore

EXACT, _, SAMPLED, SPARSE = Reading


def keep(store: PrefixStore, tokens: np.ndarray, reading: Reading = EXACT, n_bytes: int = 500, **of) -> bool:
    return store.insert_snapshot(Conversation(tokens, **of), np.full(len(tokens), reading), state(tokens, n_bytes))


def restore(store: PrefixStore, tokens: np.ndarray, n_have: int = 0, accepts: Reading = EXACT, goes_on: int = 0, n_bytes: int = 500) -> PrefixHit:
    """A hit, with the right state and the right rows up to it."""
    hit = stores.restore(store, tokens, n_have, accepts, goes_on=goes_on)
    n = check_rows(hit, tokens, n_have, accepts)
    if hit.snapshot is None:
        assert n == 0, f"{n} rows without a snapshot"
    else:
        at = hit.snapshot.position
        assert n == max(0, at - n_have), f"{n} rows behind {n_have}, and the snapshot is at {at}"
        assert np.array_equal(hit.snapshot.read(), state(tokens[:at], n_bytes)), f"the snapshot at {at} is of other tokens"
    return hit


def position(hit: PrefixHit) -> int | None:
    return None if hit.snapshot is None else hit.snapshot.position


def test_a_snapshot_without_its_rows_is_not_offered():
    store, tokens = open_store(), conversation(700)
    keep(store, tokens[:600])
    assert position(restore(store, tokens)) is None
    assert position(restore(store, tokens, n_have=599)) is None
    save(store, tokens[:512])
    assert position(restore(store, tokens)) is None
    save(store, tokens[:600])
    assert position(restore(store, tokens)) == 600


def test_labels_and_settings_are_followed_only_where_they_are_accepted():
    store, tokens = open_store(), conversation(700)
    readings = exact(tokens)
    readings[300:] = SAMPLED
    said = ReadWith(sampled=b"settings")
    store.insert(Conversation(tokens, read_with=said), readings, reader(tokens, readings))
    store.insert_snapshot(Conversation(tokens[:200], read_with=said), readings[:200], state(tokens[:200]))
    store.insert_snapshot(Conversation(tokens[:600], read_with=said), readings[:600], state(tokens[:600]))

    def found(accepts: Reading, read_with: ReadWith) -> int | None:
        return position(stores.restore(store, tokens, 0, accepts, goes_on=0, read_with=read_with))

    assert found(SAMPLED, said) == 600
    assert found(EXACT, said) == found(SAMPLED, NOTHING_SAID) == found(SAMPLED, ReadWith(sampled=b"others")) == 200
    assert store.has_snapshot(Conversation(tokens[:600], read_with=said), readings[:600])
    assert not store.has_snapshot(Conversation(tokens[:600]), readings[:600])


def test_an_equal_one_is_kept_once():
    store, tokens = open_store(), conversation(300)
    for _ in range(3):
        assert keep(store, tokens)
    assert snapshots_in(store.ram) == [500 + 4 * (300 - 256)] == [store.stats().ram.n_bytes]


def test_what_is_forgotten_leaves_no_snapshot():
    store, system = open_store(), conversation(300)
    one, other = (conversation(150, seed, after=system) for seed in (1, 2))
    chains = [save(store, tokens).chain for tokens in (one, other)]
    for tokens in (one[:280], one[:400], other[:400]):
        keep(store, tokens)
    store.evict({chains[0][-1].key})  # the first block is the other one's too, and so is the beginning of its tail
    assert store.has_snapshot(Conversation(one[:280]), exact(one[:280]))
    assert not store.has_snapshot(Conversation(one[:400]), exact(one[:400]))
    assert position(restore(store, other)) == 400
    store.evict({link.key for chain in chains for link in chain})
    assert store.stats().ram.n_bytes == 0 and not snapshots_in(store.ram)


def test_one_that_does_not_fit_is_declined_and_evicts_nothing():
    store, tokens = open_store(ram_bytes=4 * BLOCK_BYTES), conversation(512)
    save(store, tokens)
    assert not keep(store, tokens[:500], n_bytes=5 * BLOCK_BYTES)
    assert store.stats().ram.n_blocks == 2
    assert not keep(open_store(ram_bytes=0), tokens)


def test_a_payload_of_another_shape_is_refused():
    store, tokens = open_store(), conversation(10)
    with pytest.raises(ValueError, match="uint8"):
        store.insert_snapshot(Conversation(tokens), exact(tokens), np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="10 tokens have 9 readings"):
        store.insert_snapshot(Conversation(tokens), exact(tokens[:9]), state(tokens))


def test_ram_is_bounded_over_200_turns_and_old_snapshots_go_first():
    n_bytes, per_turn, others = 4000, 20, conversation(512, 99)
    rows = LAYOUT.block_bytes(200 * per_turn) + 4 * 200 * per_turn + 3 * BLOCK_BYTES
    most = rows + 3 * BLOCK_BYTES + 12 * n_bytes
    store, tokens = open_store(ram_bytes=most), conversation(per_turn)
    save(store, others)
    keep(store, others[:500], n_bytes=n_bytes)
    kept = []
    for turn in range(200):
        if turn:
            assert position(restore(store, tokens, n_bytes=n_bytes)) == kept[-1]
        save(store, tokens)
        for at in (len(tokens) - 12, len(tokens) - 4, len(tokens)):
            assert keep(store, tokens[:at], n_bytes=n_bytes)
            kept.append(at)
        assert store.stats().ram.n_bytes <= most
        tokens = conversation(per_turn, turn, after=tokens)
    assert 4 <= len(snapshots_in(store.ram)) <= 20
    assert position(restore(store, others, n_bytes=n_bytes)) == 500  # unused all the while
