"""Exchanges that left a full context, in the format of the prefix store: each is a chain of its own, with a record behind its tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Conversation, Reading
from edgekv.prefix_cache.results import PrefixHit
from edgekv.prefix_cache.store import PrefixStore


class Record(NamedTuple):
    """What is kept of an exchange besides its rows. It is stored as a snapshot behind them: position (int32), then the embedding (float32)."""

    position: int
    """The position of its first token when its rows were computed."""
    embedding: np.ndarray
    """float32 [layer, channel] of `edgekv.arrays.nearness`."""

    def payload(self) -> np.ndarray:
        """uint8 [4 + 4 * layers * channels]."""
        return np.frombuffer(np.int32(self.position).tobytes() + self.embedding.astype("<f4").tobytes(), np.uint8)

    @classmethod
    def parse(cls, payload: np.ndarray, n_layers: int) -> Record:
        """Raises ValueError for bytes that are no record of so many layers."""
        data = payload.tobytes()
        return cls(int(np.frombuffer(data[:4], "<i4")[0]), np.frombuffer(data[4:], "<f4").reshape(n_layers, -1).astype(np.float32))


def names(tokens: np.ndarray, runs: Iterable[tuple[int, int]]) -> list[str]:
    """A name for each exchange of a conversation, (first, n) in order: a digest of all tokens (int32) up to its end, since its rows depend on these."""
    before, at, found = hashlib.blake2b(digest_size=16, person=b"edgekv-exchange"), 0, list[str]()
    for first, n in runs:
        before.update(np.ascontiguousarray(tokens[at:first], "<i4").tobytes())
        one = before.copy()
        one.update(b"|" + np.ascontiguousarray(tokens[first : first + n], "<i4").tobytes())  # where it begins counts too
        found.append(one.hexdigest())
        at = first
    return found


class Exchanges:
    """The exchanges of one model identity. `n_layers`: of an embedding. Records stay in memory as long as this lives; rows come and go with the store."""

    def __init__(self, store: PrefixStore, n_layers: int):
        self.store, self._n_layers = store, n_layers
        self._records: dict[bytes, Record | None] = {}  # by root; None: the store has none

    def has(self, root: bytes) -> bool:
        return self._records.get(root) is not None

    def insert(self, of: Conversation, readings: np.ndarray, blocks: Sequence[np.ndarray], record: Record) -> None:
        """Keep an exchange. `blocks`: its rows in parts of BLOCK_TOKENS, each uint8 [layout.block_bytes(n)]; the others as in `PrefixStore.insert`."""
        self._records[of.root] = record
        saved = self.store.insert(of, readings, lambda first, n: blocks[first // BLOCK_TOKENS])
        if saved.n_left_out == 0:
            self.store.insert_snapshot(of, readings, record.payload())

    def record(self, of: Conversation, accepts: Reading) -> Record | None:
        """What is known of an exchange; from the store if an earlier process kept it."""
        root = of.root
        if root not in self._records:
            hit = self.find(of, accepts, goes_on=0)
            payload = None if hit.snapshot is None or hit.end < len(of.tokens) else hit.snapshot.read()
            self.store.release(hit)
            self._records[root] = None if payload is None else Record.parse(payload, self._n_layers)
        return self._records[root]

    def find(self, of: Conversation, accepts: Reading, goes_on: int | None = None) -> PrefixHit:
        """The rows of an exchange, as `PrefixStore.load` gives them. `goes_on`: 0 finds its record too."""
        if goes_on is not None:
            of = of._replace(tokens=np.append(of.tokens, np.int32(-1)))  # a record lies before the last token that is asked for
        return self.store.load(self.store.match_prefix(of, accepts, goes_on=goes_on))
