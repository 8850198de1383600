"""The store loads or computes tokens by the rates that it has seen."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from support.prefix_rows import BLOCK_BYTES, LAYOUT, conversation
from support.stores import open_store, restore, save

from edgekv.prefix_cache.blocks import KeptBlock, Reading, child_link
from edgekv.prefix_cache.coming import BlockReader, ComingBlock
from edgekv.prefix_cache.format import Refused
from edgekv.prefix_cache.place_rates import LEAST_SEEN_S, STALE_S, Rate
from edgekv.prefix_cache.results import BlockPiece, PrefixHit

ALL_LAYERS = range(len(LAYOUT.k_bytes))


def rate(tokens_per_s: float | None, clock: Callable[[], float] = time.monotonic) -> Rate:
    found = Rate(clock)
    if tokens_per_s is not None:
        found.seen(tokens_per_s * BLOCK_BYTES / 256, 1.0)
    return found


def pieces(*sources: float | str | None, clock: Callable[[], float] = time.monotonic) -> PrefixHit:
    """Pieces of 256 tokens: each in RAM, or in a place of so many tokens a second."""
    found = []
    for i, source in enumerate(sources):
        tokens = conversation(256, i)
        link = child_link(b"x" * 16, Reading.EXACT, tokens)
        block = KeptBlock(link, tokens, LAYOUT, np.zeros(LAYOUT.block_bytes(256), np.uint8)) if source == "ram" else \
            ComingBlock(link, tokens, LAYOUT, lambda *_: True, rate(source, clock))
        found.append(BlockPiece(256 * i, 256, 0, 256, Reading.EXACT, "ram" if source == "ram" else "disk", lambda _: None, block))
    return PrefixHit(tuple(found))


@pytest.mark.parametrize(("sources", "prompts", "n"), [
    ((), 100.0, 0),
    ((1000.0, 1000.0), 100.0, 2),
    ((10.0, 10.0), 100.0, 0),
    ((10.0, 10.0), 0.0, 2),  # nobody knows how fast prompts are
    ((None, None), 100.0, 2),  # nor how fast the place is
    ((0.0, 0.0), 100.0, 0),  # nothing ever came from it
    (("ram", "ram"), None, 2),  # nobody asks
    (("ram", 0.0, "ram"), 100.0, 1),
    (("ram", 10.0, 10.0), 100.0, 1),
    ((90.0, "ram", 10.0), 100.0, 2),  # the block behind it in RAM makes up for it
    ((10.0, "ram", "ram"), 100.0, 0),
    ((1000.0, 10.0, 1000.0), 100.0, 1),
], ids=str)
def test_the_quicker_way(sources, prompts, n):
    assert pieces(*sources).worth(None if prompts is None else lambda first, n: n / prompts if prompts else 0.0) == n


def test_later_tokens_of_a_prompt_cost_more():
    """A place that is too slow for the beginning pays further on."""
    found = pieces(*[100.0] * 8)
    assert found.worth(lambda first, n: n * (0.005 + first * 1e-5)) == 8  # loading takes 20 s and computing 29 s, though less for the first blocks
    assert found.worth(lambda first, n: n * (0.005 + first * 1e-7)) == 0


def test_a_slow_place_is_tried_again_with_one_piece():
    now = 100.0
    found = pieces("ram", 10.0, 10.0, clock=lambda: now)
    assert found.worth(lambda first, n: n / 100) == 1
    now += STALE_S + 1
    assert found.worth(lambda first, n: n / 100) == 2


def test_a_rate_is_of_what_was_seen_lately():
    seen = Rate()
    assert seen.takes_s(1000) == 0
    seen.seen(1, LEAST_SEEN_S / 2)
    assert seen.takes_s(1000) == 0  # the time is too short to tell
    seen = Rate()
    seen.seen(100, 1.0)
    assert seen.takes_s(1000) == 10
    for _ in range(60):
        seen.seen(1000, 1.0)
    assert 1 <= seen.takes_s(1000) < 1.02
    for _ in range(60):
        seen.seen(0, 1.0)
    assert seen.takes_s(1000) > 100


def test_a_rate_brings_what_was_seen_and_nothing_before():
    seen = Rate()
    assert not seen.brings(0, 1.0, True) and not seen.brings(0, 1.0, False)
    seen.seen(100, 0.002)  # with the time of unpacking them
    assert seen.brings(25_000, 0.5, False) and not seen.brings(25_001, 0.5, False) and not seen.brings(1, 1.0, True)
    seen.stored(50, 0.0005)
    assert seen.brings(50_000, 0.5, True) and not seen.brings(50_001, 0.5, True) and not seen.brings(25_001, 0.5, False)
    failed = Rate()
    failed.seen(0, 0.001)
    assert not failed.brings(1, 1.0, False)


def test_rows_that_come_and_rows_that_do_not_are_seen(tmp_path, monkeypatch):
    """A folder's rate counts rows that were read and rows that could not be."""
    seen: list[float] = []
    monkeypatch.setattr(Rate, "seen", lambda _, n_bytes, seconds: seen.append(n_bytes) if seconds >= 0 else None)
    tokens = conversation(600)
    with_rows = open_store(tmp_path)
    save(with_rows, tokens)
    with_rows.close()
    store = open_store(tmp_path)
    restored = restore(store, tokens, 0, Reading.EXACT, in_part=True)
    assert len(restored.pieces) == 3 and restored.pieces[0].read(ALL_LAYERS) is not None
    assert seen == [LAYOUT.block_bytes(256)]

    def broken(*_):
        raise Refused("it is damaged", damaged=True)

    monkeypatch.setattr(BlockReader, "read", broken)
    assert restored.pieces[1].read(ALL_LAYERS) is None
    assert seen == [LAYOUT.block_bytes(256), 0]
    store.release(restored, 0)
    store.close()
