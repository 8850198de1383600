"""Exchanges that left a context: their names, their records, and their rows in the store's format."""

import numpy as np
import pytest
from support.prefix_rows import check_rows, conversation, exact, payload_of, rows_of
from support.stores import open_store

from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Conversation, Reading
from edgekv.prefix_cache.exchanges import Exchanges, Record, names
from edgekv.prefix_cache.store import PrefixStore

EXACT = Reading.EXACT
N_LAYERS = 2
RECORD = Record(1234, np.arange(6, dtype=np.float32).reshape(N_LAYERS, 3))


def keep(store: PrefixStore, root: bytes, tokens: np.ndarray) -> Exchanges:
    exchanges, rows = Exchanges(store, N_LAYERS), rows_of(tokens, exact(tokens))
    blocks = [payload_of(rows, first, min(BLOCK_TOKENS, len(tokens) - first)) for first in range(0, len(tokens), BLOCK_TOKENS)]
    exchanges.insert(Conversation(tokens, root), exact(tokens), blocks, RECORD)
    return exchanges


def test_a_name_depends_on_all_tokens_before():
    """And on nothing else: neither on what else left, nor on what follows."""
    tokens = conversation(100)
    one, two = names(tokens, [(10, 20), (40, 30)])
    assert names(tokens[:70], [(40, 30)]) == [two] and one != two
    other = tokens.copy()
    other[5] += 1
    assert not set(names(other, [(10, 20), (40, 30)])) & {one, two}
    assert names(tokens, [(39, 31)]) != [two], "the same tokens, another beginning"


def test_a_record_is_bytes():
    again = Record.parse(RECORD.payload(), N_LAYERS)
    assert again.position == RECORD.position and np.array_equal(again.embedding, RECORD.embedding)
    with pytest.raises(ValueError):
        Record.parse(RECORD.payload()[:-3], N_LAYERS)


@pytest.mark.parametrize("n", [40, BLOCK_TOKENS, 700])
def test_a_folder_knows_them_after_a_restart(tmp_path, n):
    tokens = conversation(n)
    store = open_store(tmp_path)
    root = store.identity.chain_root("", "", "one")
    keep(store, root, tokens)
    store.close()

    store = open_store(tmp_path)
    exchanges = Exchanges(store, N_LAYERS)
    found = exchanges.record(Conversation(tokens, root), EXACT)
    assert found is not None and found.position == RECORD.position and np.array_equal(found.embedding, RECORD.embedding)
    hit = exchanges.find(Conversation(tokens, root), EXACT)
    assert hit.end == n and all(piece.read(range(N_LAYERS)) is not None for piece in hit.pieces)
    assert check_rows(hit, tokens, 0, EXACT) == n
    store.release(hit, len(hit.pieces))
    assert exchanges.record(Conversation(tokens, store.identity.chain_root("", "", "another")), EXACT) is None
    assert exchanges.record(Conversation(conversation(n, seed=1), root), EXACT) is not None, "a root names one exchange"
    store.close()


def test_rows_that_a_folder_has_already_are_not_taken_for_later_ones(tmp_path):
    """The process that wrote the first block was killed before it wrote the second."""
    tokens = conversation(700)
    store = open_store(tmp_path)
    root = store.identity.chain_root("", "", "one")
    keep(store, root, tokens[:BLOCK_TOKENS])
    exchanges = keep(store, root, tokens)
    hit = exchanges.find(Conversation(tokens, root), EXACT)
    assert check_rows(hit, tokens, 0, EXACT) == 700
    store.release(hit)
    store.close()


def test_a_record_outlives_its_rows():
    """RAM lets the rows go where it needs room; the exchange is still found, and read again."""
    tokens = conversation(40)
    store = open_store(ram_bytes=store_bytes(tokens))
    root = store.identity.chain_root("", "", "one")
    exchanges = keep(store, root, tokens)
    keep(store, store.identity.chain_root("", "", "two"), conversation(60, seed=1))
    assert exchanges.find(Conversation(tokens, root), EXACT).end == 0
    assert exchanges.record(Conversation(tokens, root), EXACT) is RECORD


def store_bytes(tokens: np.ndarray) -> int:
    """Room for the rows and the record of so many tokens, and half as many."""
    return 3 * 40 * len(tokens) // 2 + 200
