"""Snapshots in RAM, in a folder and on a server: bounded, listed, and gone with what they belong to. The machines ask the rest."""

import time
from pathlib import Path

import numpy as np
import pytest
from support.calls import watch
from support.prefix_rows import BLOCK_BYTES, conversation, exact, reader, state
from support.stores import open_store, restore, save, snapshots_in

from edgekv.prefix_cache import conversations
from edgekv.prefix_cache.blocks import NOTHING_SAID, Conversation, Reading, ReadWith
from edgekv.prefix_cache.files import BlockFile, scan
from edgekv.prefix_cache.identity import ModelIdentity, RowLayout
from edgekv.prefix_cache.listing import list_chains, remove_chains
from edgekv.prefix_cache.store import PrefixStore

EXACT, _, SAMPLED, _ = Reading
N_BYTES = 5000


def keep(store: PrefixStore, tokens: np.ndarray, *ends: int, n_bytes: int = N_BYTES) -> None:
    """Rows of all tokens, and snapshots behind some, in all places."""
    save(store, tokens)
    for end in ends:
        assert store.insert_snapshot(Conversation(tokens[:end]), exact(tokens[:end]), state(tokens[:end], n_bytes)), f"the snapshot at {end} is not kept"
    assert store.flush(20), "writing takes too long"


def found(store: PrefixStore, tokens: np.ndarray, n_bytes: int = N_BYTES) -> tuple[int, str]:
    """Where a prompt begins, and where the snapshot was; (0, "") where it has none."""
    hit = restore(store, tokens, 0, EXACT, goes_on=0)
    if hit.snapshot is None:
        return 0, ""
    assert hit.end == hit.snapshot.position or not store.identity.layout.n_layers, "rows without a gap"
    assert np.array_equal(hit.snapshot.read(), state(tokens[: hit.snapshot.position], n_bytes))
    return hit.snapshot.position, hit.snapshot.source


def snapshots(folder: Path) -> list[BlockFile]:
    return [file for file in scan(folder) if file.link.snapshot]


def test_a_model_without_rows_of_every_token_has_them_alone(below):
    """All of its layers slide, or keep a state: blocks are empty."""
    who, tokens = ModelIdentity(b"no rows", RowLayout((), ()), "no rows"), conversation(700)
    store = open_store(who=who, **below)
    store.insert(Conversation(tokens), exact(tokens), lambda first, n: np.empty(0, np.uint8))
    assert store.insert_snapshot(Conversation(tokens[:600]), exact(tokens[:600]), state(tokens[:600], N_BYTES)) and store.flush(20)
    again = open_store(who=who, **below)
    assert found(again, tokens) == (600, again.places[0].name)


def test_a_long_prompt_asks_a_far_server_once(server, monkeypatch: pytest.MonkeyPatch):
    tokens = conversation(20 * 256)
    keep(open_store(url=server.url, url_timeout_s=20.0), tokens, 300)
    store, asked = open_store(url=server.url, url_timeout_s=20.0), []
    watch(monkeypatch, store.places[0], "children", lambda parents, snapshots=False: snapshots and asked.append(len(parents)))
    assert found(store, tokens) == (300, "remote") and asked == [20]


# ---- bounds ------------------------------------------------------------------------------------------------------------------------


def test_one_that_is_kept_again_is_evicted_last(tmp_path):
    """By a process that finds it in the folder already, as after a kill."""
    first, second = conversation(400), conversation(400, 1)
    for tokens in (first, second, first):
        keep(open_store(folder=tmp_path), tokens, 300)
        time.sleep(0.01)  # a chain's blocks are dated 1 ms apart, and all this took 1.1 ms
    keep(open_store(folder=tmp_path, folder_bytes=sum(file.n_bytes for file in scan(tmp_path))), conversation(400, 2), 300)
    assert found(open_store(folder=tmp_path), first) == (300, "disk") and found(open_store(folder=tmp_path), second) == (0, "")


def test_200_turns_stay_within_both_bounds(tmp_path):
    """A conversation that grows, and what came before it: passed snapshots go first, in RAM too."""
    bound = 500_000
    store, early = open_store(tmp_path, ram_bytes=bound, folder_bytes=bound), conversation(300, 99)
    keep(store, early, 290)
    tokens = conversation(200)
    for turn in range(200):
        tokens = conversation(12, turn, after=tokens)
        keep(store, tokens, len(tokens) - 4, len(tokens), n_bytes=20_000)
        assert store.stats().ram.n_bytes <= bound and sum(file.n_bytes for file in scan(tmp_path)) <= bound
    assert found(store, early) == (290, "ram")
    store.close()
    store = open_store(tmp_path)
    assert found(store, conversation(3, 7, after=tokens), n_bytes=20_000) == (len(tokens), "disk")
    assert found(store, early) == (290, "disk")  # its block and snapshot are older than all, and of use


# ---- for people --------------------------------------------------------------------------------------------------------------------


def test_they_are_listed_with_their_conversation_and_go_with_it(tmp_path):
    one, two = conversation(700), conversation(300, 5)
    keep(open_store(tmp_path), one, 300, 600)
    keep(open_store(tmp_path), two, 290)
    chains = list_chains(tmp_path)
    assert sorted((chain.n_tokens, len(chain.snapshots)) for chain in chains) == [(300, 1), (700, 2)]
    longest = max(chains, key=lambda chain: chain.n_tokens)
    remove_chains([longest], chains)
    assert [len(chain.snapshots) for chain in list_chains(tmp_path)] == [1] and len(snapshots(tmp_path)) == 1


def test_those_of_a_chat_go_with_it(tmp_path):
    store, tokens = open_store(tmp_path), conversation(300, 5)
    saved = save(store, tokens)
    keep(store, tokens, 290)
    conversations.add_blocks(tmp_path, "chat", [link.key for link in saved.chain])
    store.evict(conversations.blocks_alone(tmp_path, "chat"))
    conversations.forget(tmp_path, "chat")
    assert not snapshots(tmp_path) and found(store, tokens) == (0, "") and not snapshots_in(store.ram)


# ---- RAM alone ---------------------------------------------------------------------------------------------------------------------


def snapshot(store: PrefixStore, tokens: np.ndarray, n_bytes: int = 500) -> bool:
    return store.insert_snapshot(Conversation(tokens), exact(tokens), state(tokens, n_bytes))


def test_labels_and_settings_are_followed_only_where_they_are_accepted():
    store, tokens, said = open_store(), conversation(700), ReadWith(sampled=b"settings")
    readings = np.where(np.arange(700) < 100, EXACT, SAMPLED).astype(np.uint8)
    store.insert(Conversation(tokens, read_with=said), readings, reader(tokens, readings))
    for end in (50, 200):
        store.insert_snapshot(Conversation(tokens[:end], read_with=said), readings[:end], state(tokens[:end]))
    for accepts, read_with, at in ((SAMPLED, said, 200), (EXACT, said, 50), (SAMPLED, NOTHING_SAID, 50), (SAMPLED, ReadWith(sampled=b"others"), 50)):
        assert restore(store, tokens, 650, accepts, goes_on=0, read_with=read_with).snapshot.position == at, "rows are in place, whoever read them"
    assert store.has_snapshot(Conversation(tokens[:200], read_with=said), readings[:200])
    assert not store.has_snapshot(Conversation(tokens[:200]), readings[:200])


def test_an_equal_one_is_kept_once():
    store, tokens = open_store(), conversation(300)
    for _ in range(3):
        assert snapshot(store, tokens)
    assert snapshots_in(store.ram) == [500 + 4 * (300 - 256)] == [store.stats().ram.n_bytes]


def test_what_is_forgotten_leaves_no_snapshot():
    store, system = open_store(), conversation(300)
    one, other = (conversation(150, seed, after=system) for seed in (1, 2))
    chains = [save(store, tokens).chain for tokens in (one, other)]
    for tokens in (one[:280], one[:400], other[:400]):
        snapshot(store, tokens)
    store.evict({chains[0][-1].key})  # the first block is the other one's too, and so is the beginning of its tail
    assert store.has_snapshot(Conversation(one[:280]), exact(one[:280]))
    assert not store.has_snapshot(Conversation(one[:400]), exact(one[:400]))
    assert found(store, other, n_bytes=500) == (400, "ram")
    store.evict({link.key for chain in chains for link in chain})
    assert store.stats().ram.n_bytes == 0 and not snapshots_in(store.ram)


def test_one_that_does_not_fit_is_declined_and_evicts_nothing():
    store, tokens = open_store(ram_bytes=4 * BLOCK_BYTES), conversation(512)
    save(store, tokens)
    assert not snapshot(store, tokens[:500], n_bytes=5 * BLOCK_BYTES)
    assert store.stats().ram.n_blocks == 2
    assert not snapshot(open_store(ram_bytes=0), tokens)


def test_a_payload_of_another_shape_is_refused():
    store, tokens = open_store(), conversation(10)
    with pytest.raises(ValueError, match="uint8"):
        store.insert_snapshot(Conversation(tokens), exact(tokens), np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="10 tokens have 9 readings"):
        store.insert_snapshot(Conversation(tokens), exact(tokens[:9]), state(tokens))
