"""The bound of RAM holds while a long chain is restored: its rows stream through."""

import threading
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from support import stores
from support.prefix_rows import conversation, exact

from edgekv.prefix_cache import coming
from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Conversation, Reading, most_in_flight
from edgekv.prefix_cache.coming import InFlight, layer_groups
from edgekv.prefix_cache.identity import ModelIdentity, RowLayout
from edgekv.prefix_cache.results import PrefixHit
from edgekv.prefix_cache.store import PrefixStore

EXACT = Reading.EXACT
WIDE = RowLayout((4096,) * 8, (4096,) * 8)
"""64 KiB a token, 16 MiB a block."""
N_BLOCKS = 12
TOKENS = conversation(N_BLOCKS * BLOCK_TOKENS)
BLOCK_BYTES = WIDE.block_bytes(BLOCK_TOKENS) + 4 * BLOCK_TOKENS
"""Bytes of a block in RAM, with its tokens."""
WHOLE = WIDE.block_bytes(len(TOKENS))
BESIDE = 6 << 20
"""Bytes of Python itself, and of the buffers of a server's client."""


def open_store(ram_bytes: int, **where) -> PrefixStore:
    return stores.open_store(who=ModelIdentity(b"wide", WIDE, "wide"), ram_bytes=ram_bytes, **where)


def rows(first: int, n: int) -> np.ndarray:
    return np.full(WIDE.block_bytes(n), first // BLOCK_TOKENS + 1, np.uint8)


def stream(store: PrefixStore, restored: PrefixHit, check: Callable[[], None]) -> int:
    """Read all rows as a loader does, the first layers of all blocks first. Returns the number of right pieces."""
    right = np.zeros(len(restored.pieces), int)
    groups = layer_groups(WIDE, BLOCK_TOKENS)
    for layers in groups:
        for i, piece in enumerate(restored.pieces):
            found = piece.read(layers)
            right[i] += found is not None and len(found) == WIDE.block_bytes(BLOCK_TOKENS) * len(layers) // 8 and bool(np.all(found == i + 1))
            del found
            check()
    return int(np.count_nonzero(right == len(groups)))


@pytest.mark.parametrize("n_ram", [0, 1, 4, 40], ids=lambda n: f"RAM for {n} blocks")
def test_a_chain_longer_than_ram_is_streamed(below, n_ram):
    """A chain of 192 MiB lies below."""
    store = open_store(2 * WHOLE, **below)
    store.insert(Conversation(TOKENS), exact(TOKENS), rows)
    assert store.flush(60)
    store.close()
    store = open_store(n_ram * BLOCK_BYTES, **below)
    tracemalloc.start()
    try:
        restored = stores.restore(store, TOKENS, 0, EXACT, in_part=True)
        assert restored.n_tokens == len(TOKENS)
        bound = n_ram * BLOCK_BYTES

        def check() -> None:
            stats = store.stats()
            assert stats.ram.n_bytes <= max(bound, 0), "RAM is over its bound"
            assert store.in_flight.n_bytes <= store.in_flight.most_bytes, "too many bytes are in flight"

        assert stream(store, restored, check) == N_BLOCKS
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= bound + most_in_flight(WIDE.block_bytes(BLOCK_TOKENS)) + BESIDE
    store.release(restored, N_BLOCKS)
    stats = store.stats()
    assert stats.ram.n_blocks == min(n_ram, N_BLOCKS) and stats.ram.n_bytes == stats.ram.n_blocks * BLOCK_BYTES
    assert store.in_flight.n_bytes == 0
    again = stores.restore(store, TOKENS, 0, EXACT, in_part=True)
    assert [piece.coming for piece in again.pieces].count(False) == min(n_ram, N_BLOCKS) and not again.pieces[-1].coming or n_ram < N_BLOCKS
    store.release(again, 0)


def test_who_asks_for_more_than_may_be_in_flight_waits():
    flight = InFlight(RowLayout((1 << 14,), (1 << 14,)))
    held = [flight.array(flight.most_bytes // 2) for _ in range(2)]
    came: list[int] = []
    asks = threading.Thread(target=lambda: came.append(len(flight.array(1))))
    asks.start()
    asks.join(0.2)
    assert asks.is_alive() and not came and flight.n_bytes == flight.most_bytes
    held.pop()
    asks.join(10)
    assert came == [1] and flight.n_bytes == flight.most_bytes // 2
    assert len(flight.array(0)) == 0


@pytest.mark.parametrize(("rows", "n_groups"), [((384,) * 30, 2), ((2048,) * 32, 16), ((100,) * 3 + (10_000,) * 3, 3), ((1 << 16,), 1)])
def test_layers_are_read_in_pieces_of_some_size(rows, n_groups):
    layout = RowLayout(rows, rows)
    groups = layer_groups(layout, BLOCK_TOKENS)
    assert np.concatenate(groups).tolist() == list(range(len(rows))) and len(groups) == n_groups
    starts = layout.layer_starts(BLOCK_TOKENS)
    assert len(groups) == 1 or all(starts[group.stop] - starts[group.start] >= coming.GROUP_BYTES for group in groups)
