"""Conversations for a prefix store. Their rows tell from which tokens they were computed."""

import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Reading
from edgekv.prefix_cache.identity import ModelIdentity, RowLayout
from edgekv.prefix_cache.results import PrefixHit

LAYOUT = RowLayout(k_bytes=(8, 16), v_bytes=(4, 8))
"""36 bytes of each token, in two layers."""

BLOCK_BYTES = LAYOUT.block_bytes(BLOCK_TOKENS) + 4 * BLOCK_TOKENS
"""Bytes of a block in RAM, with its tokens."""


def identity(name: str = "a model", layout: RowLayout = LAYOUT) -> ModelIdentity:
    return ModelIdentity(name.encode(), layout, name)


def conversation(n: int, seed: int = 0, *, after: Sequence[int] | np.ndarray = ()) -> np.ndarray:
    """int32 [len(after) + n]: `after`, and `n` random tokens."""
    more = np.random.default_rng(seed).integers(0, 50_000, n)
    return np.concatenate([np.asarray(after), more]).astype(np.int32)


def rows_of(tokens: np.ndarray, readings: np.ndarray, layout: RowLayout = LAYOUT) -> list[np.ndarray]:
    """For each layer K, and then for each layer V: uint8 [n, bytes]. A row depends on all tokens up to its own and on their readings."""
    tokens = np.ascontiguousarray(tokens, np.int32)
    states = np.array(list(accumulate(memoryview(tokens), lambda state, token: zlib.crc32(token.to_bytes(4, "little", signed=True), state),
                                      initial=0))[1:], np.uint32)
    found = []
    for salt, width in enumerate((*layout.k_bytes, *layout.v_bytes)):
        rows = np.zeros((len(tokens), width), np.uint8)
        rows[:, :4] = ((states ^ np.uint32(salt + 1)) * np.uint32(2654435761)).astype("<u4").view(np.uint8).reshape(-1, 4)
        rows[:, 3] = np.maximum.accumulate(readings)
        found.append(rows)
    return found


def payload_of(rows: list[np.ndarray], first: int, n: int) -> np.ndarray:
    """Rows in the order that RowLayout describes."""
    n_layer = len(rows) // 2
    parts = [rows[which * n_layer + layer][first : first + n].ravel() for layer in range(n_layer) for which in (0, 1)]
    return np.concatenate(parts)


def reader(tokens: np.ndarray, readings: np.ndarray | None = None, calls: list[tuple[int, int]] | None = None,
           layout: RowLayout = LAYOUT) -> Callable[[int, int], np.ndarray]:
    """A function that gives `PrefixStore.save` its rows; `calls` collects its arguments."""
    rows = rows_of(tokens, exact(tokens) if readings is None else readings, layout)

    def read(first: int, n: int) -> np.ndarray:
        if calls is not None:
            calls.append((first, n))
        return payload_of(rows, first, n)

    return read


class InSlot:
    """Rows in a slot's cells: uint8 [bytes] of a block of n tokens."""

    def __init__(self, payload: np.ndarray, n: int, layout: RowLayout = LAYOUT):
        self._payload, self._starts, self.needed, self.held = payload, layout.layer_starts(n), None, True
        self.parked = False

    def read(self, layers: range, n_bytes: int) -> np.ndarray:
        assert self.held, "other tokens lie there"
        rows = self._payload[int(self._starts[layers.start]) : int(self._starts[layers.stop])].copy()
        assert len(rows) == n_bytes
        return rows

    def release(self) -> None:
        self.held = False


def exact(tokens: np.ndarray) -> np.ndarray:
    return np.full(len(tokens), Reading.EXACT, np.uint8)


def state(tokens: np.ndarray, n_bytes: int = 500) -> np.ndarray:
    """The payload of a snapshot, which tells its tokens: uint8 [n_bytes]."""
    return np.random.default_rng(np.asarray(tokens, np.uint32)).integers(0, 256, n_bytes, np.uint8)


def check_rows(restored: PrefixHit, tokens: np.ndarray, n_have: int, accepts: Reading, layout: RowLayout = LAYOUT) -> int:
    """All rows belong to exactly these tokens, without a gap, and their reading is accepted. Returns their number."""
    expected = rows_of(tokens, exact(tokens), layout)
    at, n_layer = n_have, len(layout.k_bytes)
    for piece in restored.pieces:
        assert piece.first == at, f"a gap: rows follow to {at}, and the next piece begins at {piece.first}"
        assert piece.n >= 1 and 0 <= piece.skip <= piece.skip + piece.n <= piece.n_block, f"a piece outside its block: {piece}"
        assert piece.reading <= accepts, f"{piece.reading!r} is not accepted"
        payload = piece.read(range(n_layer))
        assert payload is not None and payload.dtype == np.uint8 and payload.shape == (layout.block_bytes(piece.n_block),)
        start = 0
        for layer in range(n_layer):
            for which in (0, 1):
                want = expected[which * n_layer + layer][at : at + piece.n]
                n_bytes = piece.n_block * want.shape[1]
                got = payload[start : start + n_bytes].reshape(piece.n_block, -1)[piece.skip : piece.skip + piece.n]
                of = f"layer {layer}, {'KV'[which]}, tokens {at} to {at + piece.n}"
                assert np.array_equal(got[:, :3], want[:, :3]) and np.array_equal(got[:, 4:], want[:, 4:]), f"rows of other tokens: {of}"
                assert (got[:, 3] <= piece.reading).all(), f"rows read otherwise than the piece says: {of}"
                start += n_bytes
        at += piece.n
    return at - n_have


def reachable(tokens: np.ndarray, readings: np.ndarray, asked: np.ndarray, accepts: Reading) -> int:
    """Tokens of `asked` that one saved conversation can give. A whole block has the label of its last token."""
    n = next((i for i, (a, b) in enumerate(zip(tokens, asked)) if a != b), min(len(tokens), len(asked)))
    for first in range(0, len(tokens), BLOCK_TOKENS):
        if readings[min(len(tokens), first + BLOCK_TOKENS) - 1] > accepts:
            return min(n, first)
    return n
