"""Snapshots of the server's sequences: chooses their spacing, takes them, and begins prompts after one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgekv._native import http_server as native
from edgekv._native.prefix_callbacks import SequenceTokens
from edgekv.models.geometry import Geometry
from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Conversation
from edgekv.prefix_cache.coming import layer_groups
from edgekv.prefix_cache.results import BlockPiece, PrefixHit
from edgekv.prefix_cache.store import PrefixStore
from edgekv.runtime.runtime import Runtime
from edgekv.server.loading import Loading

LEAST_SPACING = 512
"""Fewest tokens between two snapshots in the middle of a prompt."""
MOST_SHARE = 0.05
"""Most time of the copy, as a share of the time that reading these tokens takes."""
COPY_RATE = 1e9
"""Bytes that one thread copies per second, a low estimate."""


class SnapshotKeeper:
    """Keeps snapshots of one model's contexts. Call everything on the decoding thread."""

    def __init__(self, model: Geometry):
        self._model = model

    def spacing(self, runtime: Runtime) -> int:
        """Tokens between two snapshots in the middle of a long prompt. Their rows take at least a snapshot's bytes, so that the store at most
        doubles, and reading them takes 20 times as long as the snapshot's copy."""
        types = runtime.options.cache.kinds
        n_bytes = self._model.snapshot_bytes(*types)
        row_bytes = self._model.row_bytes(*types)
        by_bytes = n_bytes / row_bytes if row_bytes else 0.0  # without rows every layer slides or keeps a state
        reading_s = native.reading_s(0, LEAST_SPACING) / LEAST_SPACING  # 0: no prompt was read yet
        by_time = n_bytes / COPY_RATE / MOST_SHARE / reading_s if reading_s > 0 else 0.0
        wanted = max(LEAST_SPACING, by_bytes, by_time)
        return -(-int(wanted) // BLOCK_TOKENS) * BLOCK_TOKENS

    def take(self, runtime: Runtime, store: PrefixStore, held: SequenceTokens, of: Conversation, readings: np.ndarray) -> None:
        """Keep a snapshot of a sequence of exactly these tokens, with their Reading, uint8 [n], if the store lacks it."""
        if not store.has_snapshot(of, readings):
            store.insert_snapshot(of, readings, runtime.tokens.snapshot(held.seq_id))

    def put(self, runtime: Runtime, store: PrefixStore, prompt: SequenceTokens, hit: PrefixHit,
            place: Callable[[Sequence[BlockPiece]], list[np.ndarray]]) -> bool:
        """Begin a prompt's sequence after a hit's snapshot: put in its rows, then the snapshot. False: a part is damaged, or there is no room; look
        up again. `place`: places cells for pieces, as many as are free. Raises NativeError for an unusable snapshot; the sequence is then empty."""
        seq_id, at = prompt.seq_id, prompt.at
        done = False
        try:
            kept = hit.snapshot
            state = None if kept is None else kept.read()
            if kept is None or state is None:
                return False
            cells = place(hit.pieces)
            loading = Loading(runtime.tokens, seq_id, hit.pieces[: len(cells)], cells, layer_groups(store.identity.layout, BLOCK_TOKENS), at=at)
            if loading.finish() < len(hit.pieces):
                return False
            runtime.tokens.put_snapshot(seq_id, kept.position if at is None else int(at[0, kept.position]), state)
            done = True
            return True
        finally:
            store.release(hit, len(hit.pieces) if done else None)
