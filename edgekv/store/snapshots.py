"""Snapshots: what a sequence keeps besides rows, behind exactly so many tokens. They hang on chains of blocks, in RAM."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from edgekv.store.blocks import BLOCK_TOKENS, NOTHING_SAID, Block, Link, Reading, ReadWith, child_link, snapshot_link
from edgekv.store.ram import Ram, SharedRam
from edgekv.store.results import KeptSnapshot, PrefixHit

N_NEWEST = 3
"""Snapshots of a chain that do not make each other superfluous: a turn takes up to so many, and which one the next turn needs is not known."""


class Snapshots:
    """The snapshots of one store. `known`: its link of a block that it has; `make_room`: as the store's, with the lock held."""

    def __init__(self, shared: SharedRam, known: Callable[[bytes, np.ndarray, range, ReadWith], Link | None],
                 make_room: Callable[[int, set[bytes], float | None], bool]):
        self._ram, self._shared, self._known, self._make_room = shared.blocks, shared, known, make_room

    def has(self, tokens: np.ndarray, readings: np.ndarray, root: bytes, read_with: ReadWith) -> bool:
        link = self._chain(tokens, readings, root, read_with)[-1]
        with self._shared.lock:
            return link.key in self._ram

    def save(self, tokens: np.ndarray, readings: np.ndarray, payload: np.ndarray, root: bytes, read_with: ReadWith) -> bool:
        if payload.dtype != np.uint8 or payload.ndim != 1:
            raise ValueError(f"a snapshot is uint8 [bytes], not {payload.dtype} {list(payload.shape)}")
        chain = self._chain(tokens, readings, root, read_with)
        state = payload.view()
        state.flags.writeable = False
        block = Block(chain[-1], tokens[len(tokens) - chain[-1].n :].copy(), state)
        with self._shared.lock:
            if block.link.key not in self._ram:
                self._pass(chain, tokens, root)
                if not self._make_room(block.n_bytes, {link.key for link in chain}, None):
                    return False
                self._ram.put(block)
            self._ram.passed.discard(block.link.key)
            self._ram.touch(link.key for link in chain)
        return True

    def cut(self, hit: PrefixHit, tokens: np.ndarray, n_have: int, goes_on: int, root: bytes, accepts: Reading,
            read_with: ReadWith = NOTHING_SAID) -> PrefixHit:
        """The hit up to the snapshot that lies furthest: behind `goes_on` tokens, before the last token, and not behind the rows."""
        last = min(len(tokens) - 1, max(hit.end, n_have))
        parents = self._parents(hit.chain, tokens[:last], root, n_have, read_with)
        with self._shared.lock:
            for i in range(len(parents) - 1, -1, -1):
                first = i * BLOCK_TOKENS
                fit = [one for one in self._ram.snapshots(parents[i]) if goes_on < first + one.link.n <= last
                       and one.link.reading <= accepts and one.link.read_with == read_with[one.link.reading]
                       and np.array_equal(one.tokens, tokens[first : first + one.link.n])]
                if fit:
                    best = max(fit, key=lambda one: (one.link.n, -one.link.reading))
                    self._shared.in_use[best.link.key] += 1
                    hit.holds.keys.append(best.link.key)
                    kept = KeptSnapshot(first + best.link.n, best.payload, Ram.name, best.link.reading, best.link.key)
                    pieces = tuple(replace(piece, n=min(piece.n, kept.position - piece.first))
                                   for piece in hit.pieces if piece.first < kept.position)
                    return replace(hit, pieces=pieces, snapshot=kept)
        return replace(hit, pieces=())

    def without_rows(self) -> list[bytes]:
        """Keys of those whose last tokens no block in RAM has, with the lock held."""
        found = [block for link in self._ram.links() if link.snapshot and link.n and (block := self._ram.get(link.key)) is not None]
        return [one.link.key for one in found
                if not any(np.array_equal(child.tokens[: one.link.n], one.tokens) for child in self._ram.children(one.link.parent))]

    def _chain(self, tokens: np.ndarray, readings: np.ndarray, root: bytes, read_with: ReadWith) -> list[Link]:
        """The links of the whole blocks before the snapshot, as a save of their rows gives them, and its own."""
        if len(tokens) != len(readings) or not len(tokens):
            raise ValueError(f"a snapshot is behind one token or more, and {len(tokens)} tokens have {len(readings)} readings")
        labels = np.maximum.accumulate(np.asarray(readings, dtype=np.uint8))
        chain: list[Link] = []
        parent, least, n_whole = root, Reading.EXACT, len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS
        for first in range(0, n_whole, BLOCK_TOKENS):
            part, reading = tokens[first : first + BLOCK_TOKENS], Reading(labels[first + BLOCK_TOKENS - 1])
            link = self._known(parent, part, range(least, reading + 1), read_with) or child_link(parent, reading, part, read_with[reading])
            chain.append(link)
            parent, least = link.key, link.reading
        worst = Reading(labels[-1])
        return [*chain, snapshot_link(parent, worst, tokens[n_whole:], read_with[worst])]

    def _parents(self, chain: Sequence[Link], tokens: np.ndarray, root: bytes, n_have: int, read_with: ReadWith) -> list[bytes]:
        """The root, and the keys of the whole blocks of `tokens`: those that were found, then those of rows that are in place."""
        parents, reading = [root], Reading.EXACT
        for i in range(len(tokens) // BLOCK_TOKENS):
            part = tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS]
            reading = chain[i].reading if i < len(chain) else reading
            link = child_link(parents[-1], reading, part, read_with[reading])
            if (i + 1) * BLOCK_TOKENS > n_have and (i >= len(chain) or chain[i].key != link.key):  # the found block goes on otherwise
                break
            parents.append(link.key)
        return parents

    def _pass(self, chain: Sequence[Link], tokens: np.ndarray, root: bytes) -> None:
        """Note which snapshots of the chain have N_NEWEST others behind them, with the new one: they are the least useful."""
        on_chain: dict[int, list[bytes]] = defaultdict(list)
        for i, parent in enumerate([root, *(link.key for link in chain[:-1])]):
            first = i * BLOCK_TOKENS
            for one in self._ram.snapshots(parent):
                if first + one.link.n < len(tokens) and np.array_equal(one.tokens, tokens[first : first + one.link.n]):
                    on_chain[first + one.link.n].append(one.link.key)
        for position in sorted(on_chain, reverse=True)[N_NEWEST - 1 :]:
            self._ram.passed.update(on_chain[position])
