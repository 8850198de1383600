"""Snapshots below RAM: in a folder and on a server, as blocks are."""

import time
from pathlib import Path

import numpy as np
import pytest
from support.prefix_rows import check_rows, conversation, exact, state
from support.stores import open_store, restore, save, snapshots_in

from edgekv.prefix_cache import conversations
from edgekv.prefix_cache.blocks import Conversation, Reading
from edgekv.prefix_cache.files import BlockFile, scan
from edgekv.prefix_cache.identity import ModelIdentity, RowLayout
from edgekv.prefix_cache.listing import list_chains, remove_chains
from edgekv.prefix_cache.results import KeptSnapshot, PrefixHit
from edgekv.prefix_cache.store import PrefixStore

EXACT = Reading.EXACT
N_BYTES = 5000


def keep(store: PrefixStore, tokens: np.ndarray, *ends: int, n_bytes: int = N_BYTES) -> None:
    """Rows of all tokens, and snapshots behind some, in all places."""
    save(store, tokens)
    for end in ends:
        assert store.insert_snapshot(Conversation(tokens[:end]), exact(tokens[:end]), state(tokens[:end], n_bytes)), f"the snapshot at {end} is not kept"
    assert store.flush(20), "writing takes too long"


def found(store: PrefixStore, tokens: np.ndarray, n_have: int = 0, n_bytes: int = N_BYTES) -> tuple[int, str]:
    """Where a prompt begins, and where the snapshot was; (0, "") where it has none. Rows and snapshot are the right ones."""
    for _ in range(4):
        hit = restore(store, tokens, n_have, EXACT, in_part=True, goes_on=0)
        if hit.snapshot is None:
            store.release(hit, 0)
            return 0, ""
        taken = read(store, hit)
        if taken is not None:
            assert np.array_equal(taken, state(tokens[: hit.snapshot.position], n_bytes))
            return hit.snapshot.position, hit.snapshot.source
    raise AssertionError("damaged snapshots do not go")


def read(store: PrefixStore, hit: PrefixHit) -> np.ndarray | None:
    assert isinstance(hit.snapshot, KeptSnapshot)
    taken = hit.snapshot.read()
    good = taken is not None and all(piece.read(range(store.identity.layout.n_layers)) is not None for piece in hit.pieces)
    store.release(hit, len(hit.pieces) if good else None)
    return taken if good else None


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


def test_models_that_keep_only_rows_never_ask(below, monkeypatch: pytest.MonkeyPatch):
    tokens = conversation(700)
    keep(open_store(**below), tokens, 600)
    store = open_store(**below)
    works = type(store.places[0]).children
    monkeypatch.setattr(type(store.places[0]), "children", lambda place, of, snapshots=False: pytest.fail("it asked") if snapshots else works(place, of))
    assert check_rows(restore(store, tokens, 0, EXACT), tokens, 0, EXACT) == 700


def test_a_long_prompt_asks_a_far_server_once(server, monkeypatch: pytest.MonkeyPatch):
    tokens = conversation(20 * 256)
    keep(open_store(url=server.url, url_timeout_s=20.0), tokens, 300)
    store, asked = open_store(url=server.url, url_timeout_s=20.0), []
    place = store.places[0]
    works = place.children
    monkeypatch.setattr(place, "children", lambda parents, snapshots=False: (snapshots and asked.append(len(parents))) or works(parents, snapshots))
    assert found(store, tokens) == (300, "remote") and asked == [20]


# ---- damage ------------------------------------------------------------------------------------------------------------------------


def test_damage_while_it_is_read_is_told_by_its_reader(tmp_path):
    tokens = conversation(700)
    keep(open_store(tmp_path), tokens, 600)
    store = open_store(tmp_path)
    hit = restore(store, tokens, 0, EXACT, in_part=True, goes_on=0)
    (only,) = snapshots(tmp_path)
    data = bytearray(only.path.read_bytes())
    data[-3] ^= 1
    only.path.write_bytes(data)
    assert hit.snapshot is not None and hit.snapshot.read() is None
    store.release(hit)
    assert not only.path.exists() and found(store, tokens) == (0, "")


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
    """A conversation that grows, and what came before it: passed snapshots go first."""
    bound = 500_000
    store, early = open_store(tmp_path, ram_bytes=bound, folder_bytes=bound), conversation(300, 99)
    keep(store, early, 290)
    tokens = conversation(200)
    for turn in range(200):
        tokens = conversation(12, turn, after=tokens)
        keep(store, tokens, len(tokens) - 4, len(tokens), n_bytes=20_000)
        assert store.stats().ram.n_bytes <= bound and sum(file.n_bytes for file in scan(tmp_path)) <= bound
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
