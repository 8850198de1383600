"""Prefix stores for the conversations of `prefix_rows`: open, fill and ask them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from support.prefix_rows import check_rows, exact, identity, reader

from edgekv.prefix_cache.blocks import Conversation, Reading
from edgekv.prefix_cache.identity import ModelIdentity
from edgekv.prefix_cache.ram import Ram
from edgekv.prefix_cache.results import PrefixHit, Saved
from edgekv.prefix_cache.search import Match
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.prefix_cache.store import PrefixStore


def open_store(folder: Path | None = None, ram_bytes: int = 1 << 30, who: ModelIdentity | None = None, **settings) -> PrefixStore:
    return PrefixStore(who or identity(), StoreSettings(ram_bytes=ram_bytes, folder=folder, **settings))


def save(store: PrefixStore, tokens: np.ndarray, readings: Sequence[int] | None = None, calls: list[tuple[int, int]] | None = None) -> Saved:
    """Save into RAM. `calls` collects the rows that were read."""
    readings = exact(tokens) if readings is None else np.asarray(readings, np.uint8)
    return store.insert(Conversation(tokens), readings, reader(tokens, readings, calls))


def save_through(store: PrefixStore, tokens: np.ndarray, readings: Sequence[int] | None = None,
                 calls: list[tuple[int, int]] | None = None) -> Saved:
    """Save into every place."""
    saved = save(store, tokens, readings, calls)
    assert store.flush(20), "writing takes too long"
    return saved


def restore(store: PrefixStore, tokens: np.ndarray, n_have: int, accepts: Reading, in_part: bool = False, goes_on: int | None = None, **of) -> PrefixHit:
    """in_part: as `PrefixStore.load` gives it; else with all rows in memory, and released."""
    match = store.match_prefix(Conversation(tokens, **of), accepts, n_have, goes_on)
    return store.load(match) if in_part else load_all(store, match)


def load_all(store: PrefixStore, match: Match) -> PrefixHit:
    """The pieces before the first that cannot be read, in memory and released."""
    hit, n_good = store.load(match), 0
    for piece in hit.pieces:
        if piece.coming and piece.block.payload is None:
            piece.block.stay()
        if piece.read(range(store.identity.layout.n_layers)) is None:
            break
        n_good += 1
    store.release(hit, n_good)
    return hit.first_pieces(n_good)


def snapshots_in(ram: Ram) -> list[int]:
    """Bytes of each."""
    return [ram.get(link.key).n_bytes for link in ram.links() if link.snapshot]


def n_restored(store: PrefixStore, tokens: np.ndarray, n_have: int = 0, accepts: Reading = Reading.EXACT, **of) -> int:
    """Tokens that the store gives, with their right rows."""
    return check_rows(restore(store, tokens, n_have, accepts, **of), tokens, n_have, accepts)
