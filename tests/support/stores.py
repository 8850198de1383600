"""Prefix stores for the conversations of `prefix_rows`: open, fill and ask them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from support.prefix_rows import check_rows, exact, identity, reader

from edgekv.prefix_cache.blocks import Reading
from edgekv.prefix_cache.identity import ModelIdentity
from edgekv.prefix_cache.results import Saved
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.prefix_cache.store import PrefixStore


def open_store(folder: Path | None = None, ram_bytes: int = 1 << 30, who: ModelIdentity | None = None, **settings) -> PrefixStore:
    return PrefixStore(who or identity(), StoreSettings(ram_bytes=ram_bytes, folder=folder, **settings))


def save(store: PrefixStore, tokens: np.ndarray, readings: Sequence[int] | None = None, calls: list[tuple[int, int]] | None = None) -> Saved:
    """Save into RAM. `calls` collects the rows that were read."""
    readings = exact(tokens) if readings is None else np.asarray(readings, np.uint8)
    return store.save(tokens, readings, reader(tokens, readings, calls))


def save_through(store: PrefixStore, tokens: np.ndarray, readings: Sequence[int] | None = None,
                 calls: list[tuple[int, int]] | None = None) -> Saved:
    """Save into every place."""
    saved = save(store, tokens, readings, calls)
    assert store.flush(20), "writing takes too long"
    return saved


def n_restored(store: PrefixStore, tokens: np.ndarray, n_have: int = 0, accepts: Reading = Reading.EXACT) -> int:
    """Tokens that the store gives, with their right rows."""
    return check_rows(store.restore(tokens, n_have, accepts), tokens, n_have, accepts)
