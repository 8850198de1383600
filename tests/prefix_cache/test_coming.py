"""Blocks of a folder whose rows come layer by layer."""

import logging
from pathlib import Path

import numpy as np
import pytest
from support.prefix_rows import LAYOUT, check_rows, conversation, exact, reader
from support.stores import open_store, restore, save_through

from edgekv.prefix_cache import coming
from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Conversation, Reading
from edgekv.prefix_cache.coming import layer_groups
from edgekv.prefix_cache.files import read_header, scan
from edgekv.prefix_cache.identity import RowLayout
from edgekv.prefix_cache.results import PrefixHit

EXACT = Reading.EXACT
TOKENS = conversation(700)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_through(open_store(tmp_path), TOKENS)
    return tmp_path


def second_file(folder: Path) -> Path:
    """The file of the second block."""
    return next(file.path for file in scan(folder) if read_header(file.path).tokens[0] == TOKENS[BLOCK_TOKENS])


def read(restored: PrefixHit, *layers: int) -> list[bool]:
    return [piece.read(range(layer, layer + 1)) is not None for piece in restored.pieces if piece.coming for layer in layers]


def test_rows_come_when_they_are_asked_for(folder):
    store = open_store(folder)
    restored = restore(store, TOKENS, 0, EXACT, in_part=True)
    assert all(piece.coming for piece in restored.pieces) and restored.n_tokens == 700
    assert store.stats().disk.hit_tokens == store.stats().ram.n_blocks == 0
    assert read(restored, 0, 1) == [True] * 6
    assert check_rows(restored, TOKENS, 0, EXACT) == 700
    store.release(restored, 3)
    assert store.stats().disk.hit_tokens == 700 and store.stats().ram.n_blocks == 3
    again = restore(store, TOKENS, 0, EXACT, in_part=True)
    assert not any(piece.coming for piece in again.pieces) and check_rows(again, TOKENS, 0, EXACT) == 700


def test_what_is_in_ram_is_there_at_once(folder):
    store = open_store(folder)
    assert restore(store, TOKENS[:300], 0, EXACT).n_tokens == 300
    restored = restore(store, TOKENS, 0, EXACT, in_part=True)
    assert [piece.source for piece in restored.pieces] == ["ram", "ram", "disk"] and restored.pieces[2].coming
    read(restored, 0, 1)
    assert check_rows(restored, TOKENS, 0, EXACT) == 700


@pytest.mark.parametrize("layer", [0, 1])
def test_damage_is_found_in_its_layer(folder, caplog, layer):
    store = open_store(folder)
    restored = restore(store, TOKENS, 0, EXACT, in_part=True)
    path = second_file(folder)
    header, data = read_header(path), bytearray(path.read_bytes())
    data[header.start + int(LAYOUT.layer_starts(BLOCK_TOKENS)[layer]) + 5] ^= 4
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING, "edgekv"):
        assert read(restored, 1 - layer) == [True] * 3
        assert read(restored, layer) == [True, False, True]
    assert [f"the rows of layer {layer} are damaged" in record.getMessage() for record in caplog.records] == [True]
    assert not path.exists()
    store.release(restored, 1)
    stats = store.stats()
    assert (stats.disk.hit_tokens, stats.ram.n_blocks, stats.disk.n_refused) == (256, 1, 1)
    assert restore(store, TOKENS, 0, EXACT).n_tokens == 256


def test_a_file_that_vanishes_meanwhile_is_a_miss(folder):
    restored = restore(open_store(folder), TOKENS, 0, EXACT, in_part=True)
    for file in scan(folder):
        file.path.unlink()
    assert not any(read(restored, 0))


@pytest.mark.parametrize(("rows", "n_groups"), [((384,) * 30, 2), ((2048,) * 32, 16), ((100,) * 3 + (10_000,) * 3, 3), ((1 << 16,), 1)])
def test_layers_are_read_in_pieces_of_some_size(rows, n_groups):
    layout = RowLayout(rows, rows)
    groups = layer_groups(layout, BLOCK_TOKENS)
    assert np.concatenate(groups).tolist() == list(range(len(rows))) and len(groups) == n_groups
    starts = layout.layer_starts(BLOCK_TOKENS)
    assert len(groups) == 1 or all(starts[group.stop] - starts[group.start] >= coming.GROUP_BYTES for group in groups)


@pytest.mark.parametrize("other", [False, True], ids=["the same rows", "other rows"])
def test_one_that_was_evicted_and_written_again_is_not_damaged(folder, caplog, other):
    """The file changes between two layers. The same rows go on; other rows are not taken, and their file stays."""
    store = open_store(folder)
    restored = restore(store, TOKENS, 0, EXACT, in_part=True)
    assert read(restored, 0) == [True] * 3
    for file in scan(folder):
        file.path.unlink()
    again = open_store(folder, ram_bytes=0)
    rows = reader(TOKENS)
    again.insert(Conversation(TOKENS), exact(TOKENS), (lambda first, n: rows(first, n) ^ np.uint8(1)) if other else rows)
    again.close()
    with caplog.at_level(logging.WARNING, "edgekv"):
        assert read(restored, 1) == [not other] * 3
    assert not caplog.records and store.stats().disk.n_refused == 0 and store.places[0].working
    assert len(list(scan(folder))) == 3
