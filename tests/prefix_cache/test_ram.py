"""The store with RAM alone: chains, cuts, tails, labels, near misses, bounds; prompts that stay for a time, and those that stay in RAM alone."""

import time

import numpy as np
import pytest
from support.prefix_rows import BLOCK_BYTES, InSlot, conversation, exact, identity, reader, state
from support.stores import n_restored, open_store, restore, save, save_through

from edgekv.common.enums import MissReason
from edgekv.prefix_cache.blocks import Conversation, Reading, ReadWith
from edgekv.prefix_cache.named import read_pins
from edgekv.prefix_cache.ram import Pins, Ram
from edgekv.prefix_cache.results import Saved
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.prefix_cache.store import PrefixStore

EXACT, ROUNDED, SAMPLED, SPARSE = Reading


def ram_store(n_bytes: int = 1 << 30) -> PrefixStore:
    return open_store(ram_bytes=n_bytes)


def test_a_tail_goes_when_a_longer_block_begins_with_it():
    store, tokens = ram_store(), conversation(600)
    save(store, tokens)
    assert store.stats().ram.n_blocks == 3
    save(store, conversation(50, 1, after=tokens))
    assert store.stats().ram.n_blocks == 3
    save(store, conversation(50, 2, after=tokens))  # another conversation: both tails stay
    assert store.stats().ram.n_blocks == 4
    for seed in (1, 2):
        assert n_restored(store, conversation(50, seed, after=tokens)) == 650


def test_a_longer_block_of_other_settings_leaves_a_tail():
    store, tokens, fine = ram_store(), conversation(390), ReadWith(sampled=b"fine")
    readings = np.where(np.arange(390) < 300, EXACT, SAMPLED).astype(np.uint8)
    for n, read_with in ((350, fine), (390, ReadWith(sampled=b"coarse"))):
        store.insert(Conversation(tokens[:n], read_with=read_with), readings[:n], reader(tokens[:n], readings[:n]))
    assert n_restored(store, tokens, 0, SAMPLED, read_with=fine) == 350


def test_of_two_chains_of_whole_blocks_the_better_end_counts():
    store, tokens = ram_store(), conversation(512)
    for n, reading in ((512, ROUNDED), (256, EXACT), (512, SPARSE)):
        save(store, tokens[:n], np.full(n, reading))
    assert [piece.reading for piece in restore(store, tokens, 0, SPARSE).pieces] == [ROUNDED, ROUNDED]


@pytest.mark.parametrize("ram_bytes", [0, 1 << 30], ids=["in a folder", "in RAM"])
def test_near_miss_names_the_first_token_that_differs(tmp_path, ram_bytes):
    store, tokens = open_store(tmp_path, ram_bytes), conversation(2000)
    save_through(store, tokens)
    asked = tokens.copy()
    asked[40] += 1
    assert restore(store, asked, 0, EXACT).missed == (MissReason.DIVERGED, 40)
    for n_new, n_gone in ((3, 0), (200, 0), (150, 100), (1, 200)):
        inserted = np.concatenate([tokens[:300], conversation(n_new, 7), tokens[300 + n_gone :]])
        assert restore(store, inserted, 0, EXACT).missed == (MissReason.DIVERGED, 300)
    assert restore(store, conversation(500, 5, after=tokens[:512]), 0, EXACT).missed == (MissReason.COLD, 512), "another question is no insertion"


def test_no_near_miss_where_little_was_lost_or_nothing_differs():
    store, tokens = ram_store(), conversation(700)
    save(store, tokens)
    assert restore(store, conversation(9, 1, after=tokens[:500]), 0, EXACT).missed == (MissReason.COLD, 500)
    assert restore(store, tokens[:500], 0, EXACT).missed is None
    assert restore(store, conversation(9, 1, after=tokens), 0, EXACT).missed == (MissReason.COLD, 700)


@pytest.mark.parametrize(("n_blocks", "happens", "there"), [
    (6, ("a4", "b4"), {"b": 4, "a": 2}), (6, ("a3", "b3", "a", "c3"), {"a": 3, "b": 0, "c": 3}), (3, ("a5",), {"a": 3}),
], ids=["from its end", "use counts", "a long one keeps its beginning"])
def test_what_was_not_used_for_longest_goes_first(n_blocks, happens, there):
    """happens: a conversation and its blocks are saved, or it is used."""
    store, tokens = ram_store(n_blocks * BLOCK_BYTES), {name: conversation(5 * 256, ord(name)) for name in "abc"}
    for name, *n in happens:
        saved = save(store, tokens[name][: 256 * int(n[0])]) if n else None
        assert saved is None or saved.n_left_out == 256 * max(0, int(n[0]) - n_blocks)
        assert n or n_restored(store, tokens[name])
    assert {name: n_restored(store, tokens[name]) // 256 for name in there} == there
    assert store.stats().ram.n_bytes <= n_blocks * BLOCK_BYTES


def test_stores_share_a_bound():
    """Two models, or one with two adapters, share a bound: the conversation that was used last stays, whosever it is."""
    shared, settings = Ram(), StoreSettings(ram_bytes=5 * BLOCK_BYTES)
    first, second = (PrefixStore(identity(name), settings, ram=shared) for name in ("one", "another"))
    old, new = conversation(512, seed=1), conversation(768, seed=2)
    save(first, old)
    save(second, old)
    assert n_restored(first, old) == n_restored(second, old) == 512
    save(first, new)
    assert n_restored(first, new) == 768 and n_restored(second, old) == 512 and n_restored(first, old) == 0
    assert first.stats().ram.n_bytes == second.stats().ram.n_bytes <= 5 * BLOCK_BYTES and first.stats().ram.n_evicted == 2


def test_without_ram_and_places_nothing_is_kept():
    store, tokens, calls = ram_store(0), conversation(300), []
    assert save(store, tokens, calls=calls).n_left_out == 300
    assert not calls and n_restored(store, tokens) == 0


def test_wrong_rows_are_refused():
    store, tokens = ram_store(), conversation(300)
    with pytest.raises(ValueError, match="uint8"):
        store.insert(Conversation(tokens), exact(tokens), lambda first, n: np.zeros(n, np.uint8))
    with pytest.raises(ValueError, match="readings"):
        store.insert(Conversation(tokens), exact(tokens)[:9], reader(tokens))


def test_a_closed_store_is_empty():
    store, tokens = ram_store(), conversation(300)
    save(store, tokens)
    store.close()
    assert n_restored(store, tokens) == 0
    assert save(store, tokens).n_left_out == 300


def test_what_ram_has_no_room_for_when_slots_are_needed_goes_from_the_end():
    store = ram_store(3 * BLOCK_BYTES)
    tokens, other, held = conversation(1024), conversation(300, 1), list[InSlot]()
    for one in (other, tokens):
        read = reader(one)
        store.insert(Conversation(one), exact(one), lambda first, n: held.append(InSlot(read(first, n), n)) or held[-1])
        for rows in held:
            rows.needed()
    stats = store.stats()
    assert (stats.ram.n_blocks, stats.ram.n_bytes, stats.n_in_slots) == (3, 3 * BLOCK_BYTES, 0)
    assert n_restored(store, tokens) == 768 and n_restored(store, other) == 0


@pytest.mark.parametrize("parked", [False, True])
def test_rows_that_could_not_be_taken_out_are_not_found(monkeypatch, parked):
    """They are released, and kept anew when they are computed again."""
    store, tokens, held = ram_store(BLOCK_BYTES), conversation(256), list[InSlot]()
    keep = reader(tokens)

    def insert() -> None:
        store.insert(Conversation(tokens), exact(tokens), lambda first, n: held.append(InSlot(keep(first, n), n)) or held[-1])

    insert()
    held[0].parked = parked
    monkeypatch.setattr(type(store.ram), "_line", lambda *_: 1 // 0)
    monkeypatch.setattr(store, "most_ram_bytes", 0)
    with pytest.raises(ZeroDivisionError):
        held[0].needed()
    monkeypatch.undo()
    assert n_restored(store, tokens) == 0 and (store.stats().ram.n_bytes, store.stats().ram.n_blocks, store.stats().n_in_slots) == (0, 0, 0)
    insert()
    assert len(held) == 2 and n_restored(store, tokens) == 256


# ---- prompts that stay for a time because a request asks for it --------------------------------------------------------------------


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


def test_its_key_gets_into_no_pin_of_a_folder(tmp_path):
    """A pin moves to the block that continues its last; the folder does not have that block, and still pins its own."""
    store, prompt = open_store(tmp_path), conversation(300, 1)
    pinned(store, prompt, time.time() + 60)
    assert store.flush(20)
    (pin,) = read_pins(tmp_path)
    tokens = conversation(100, 2, after=prompt)
    longer = store.insert(Conversation(tokens, in_memory=True), exact(tokens), reader(tokens))
    assert store.flush(20) and read_pins(tmp_path) == [pin] and store.ram.pins.keys() >= {longer.chain[-1].key}
