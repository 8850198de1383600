"""Snapshots: what a sequence keeps besides rows, behind exactly so many tokens. They hang on chains of blocks, in RAM and below it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from edgekv.common.enums import MissReason
from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Conversation, KeptBlock, Link, Reading, ReadWith, child_link, snapshot_link
from edgekv.prefix_cache.identity import SnapshotLayout
from edgekv.prefix_cache.place import Child, Place, Tier
from edgekv.prefix_cache.ram import Ram
from edgekv.prefix_cache.results import KeptSnapshot, Miss, PrefixHit
from edgekv.prefix_cache.search import AHEAD, Match
from edgekv.prefix_cache.writer import Writer

N_NEWEST = 3
"""Snapshots of a chain that do not make each other superfluous: a turn takes up to so many, and which one the next turn needs is not known."""


class Snapshots:
    """The snapshots of one store. `blocks`: as the store's; `make_room` and `write` too, with the lock held."""

    def __init__(self, ram: Ram, places: Sequence[Place], writers: Sequence[Writer],
                 blocks: Callable[[Conversation, np.ndarray], Iterable[tuple[np.ndarray, Link, bool, bool]]],
                 make_room: Callable[[int, set[bytes], float | None], bool], write: Callable[[bytes, bool], None]):
        self._ram, self._places, self._writers = ram, places, writers
        self._blocks, self._make_room, self._write = blocks, make_room, write

    def has(self, of: Conversation, readings: np.ndarray) -> bool:
        """Whether RAM or a near place has it."""
        link = self._chain(of, readings)[-1]
        with self._ram.lock:
            in_ram = link.key in self._ram and link.key not in self._ram.alone
        return in_ram or any(not place.far and place.working and place.have([link])[0] for place in self._places)

    def insert(self, of: Conversation, readings: np.ndarray, payload: np.ndarray) -> bool:
        if payload.dtype != np.uint8 or payload.ndim != 1:
            raise ValueError(f"a snapshot is uint8 [bytes], not {payload.dtype} {list(payload.shape)}")
        chain, tokens = self._chain(of, readings), of.tokens
        block = KeptBlock(chain[-1], tokens[len(tokens) - chain[-1].n :].copy(), SnapshotLayout(payload.nbytes), payload)
        with self._ram.lock:
            if block.link.key not in self._ram:
                passed = self._pass(chain, tokens, of.root)
                if not self._make_room(block.n_bytes, {link.key for link in chain}, None):
                    return False
                self._ram.put(block)
                self._write(block.link.key, of.in_memory)
                for writer in self._writers:
                    writer.pass_over(passed)
            elif not of.in_memory and block.link.key in self._ram.alone:
                self._write(block.link.key, False)
            self._ram.passed.discard(block.link.key)
            self._ram.touch(link.key for link in chain)
        return True

    def cut(self, hit: PrefixHit, match: Match, goes_on: int) -> PrefixHit:
        """The hit up to the furthest snapshot that lies after `goes_on` tokens, before the last token, and not after the rows."""
        tokens, root, read_with, n_have = *match.asked[:3], match.n_have
        last = min(len(tokens) - 1, max(hit.end, n_have))
        parents = self._parents(hit.chain, tokens[:last], root, n_have, read_with)
        tiers: list[Tier] = [self._ram, *(place for place in match.places if place.working)]
        found: dict[tuple[str, bytes], list[Child]] = {}
        for i in range(len(parents) - 1, goes_on // BLOCK_TOKENS - 1, -1):
            first = i * BLOCK_TOKENS
            for tier, (link, its_tokens) in sorted(self._below(parents, i, tiers, found), key=lambda one: (-one[1].link.n, one[1].link.reading)):
                fits = (goes_on < first + link.n <= last and link.reading <= match.accepts and np.array_equal(its_tokens, tokens[first : first + link.n])
                        and link == snapshot_link(link.parent, link.reading, its_tokens, read_with.of(link.reading)))
                if fits and (block := tier.open([link])[0]) is not None:
                    if tier is self._ram:
                        hit.holds.keys.append(link.key)
                    kept = KeptSnapshot(first + link.n, tier.name, block)
                    pieces = tuple(replace(piece, n=min(piece.n, kept.position - piece.first))
                                   for piece in hit.pieces if piece.first < kept.position)
                    return replace(hit, pieces=pieces, snapshot=kept, missed=_without(hit.missed, kept.position, last, len(tokens)))
        return replace(hit, pieces=(), missed=_without(hit.missed, goes_on, last, len(tokens)))

    @staticmethod
    def _below(parents: Sequence[bytes], i: int, tiers: Sequence[Tier], found: dict[tuple[str, bytes], list[Child]]) -> list[tuple[Tier, Child]]:
        """The snapshots of the i-th parent, by tier. A far one is asked for several parents at once; `found` keeps answers."""
        for tier in tiers:
            if (tier.name, parents[i]) not in found:
                asked = parents[max(0, i + 1 - AHEAD) if tier.far else i : i + 1]
                found.update(((tier.name, parent), children) for parent, children in zip(asked, tier.children(asked, snapshots=True)))
        return [(tier, child) for tier in tiers for child in found.get((tier.name, parents[i]), [])]

    def without_rows(self) -> list[bytes]:
        """Keys of those whose last tokens no block in RAM has, with the lock held."""
        found = [block for link in self._ram.links() if link.snapshot and link.n and (block := self._ram.get(link.key)) is not None]
        return [one.link.key for one in found
                if not any(np.array_equal(child.tokens[: one.link.n], one.tokens) for child in self._ram.following(one.link.parent))]

    def _chain(self, of: Conversation, readings: np.ndarray) -> list[Link]:
        """The links of the whole blocks before the snapshot, as an insert of their rows gives them, and its own."""
        tokens = of.tokens
        if len(tokens) != len(readings) or not len(tokens):
            raise ValueError(f"a snapshot follows one token or more, and {len(tokens)} tokens have {len(readings)} readings")
        labels = np.maximum.accumulate(np.asarray(readings, dtype=np.uint8))
        n_whole, worst = len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS, Reading(labels[-1])
        chain = [link for _, link, _, _ in self._blocks(of._replace(tokens=tokens[:n_whole]), labels)]
        return [*chain, snapshot_link(chain[-1].key if chain else of.root, worst, tokens[n_whole:], of.read_with.of(worst))]

    def _parents(self, chain: Sequence[Link], tokens: np.ndarray, root: bytes, n_have: int, read_with: ReadWith) -> list[bytes]:
        """The root, and the keys of the whole blocks of `tokens`: those that were found, then those of rows that are in place."""
        parents, reading = [root], Reading.EXACT
        for i in range(len(tokens) // BLOCK_TOKENS):
            part = tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS]
            reading = chain[i].reading if i < len(chain) else reading
            link = child_link(parents[-1], reading, part, read_with.of(reading))
            if (i + 1) * BLOCK_TOKENS > n_have and (i >= len(chain) or chain[i].key != link.key):  # the found block goes on otherwise
                break
            parents.append(link.key)
        return parents

    def _pass(self, chain: Sequence[Link], tokens: np.ndarray, root: bytes) -> list[Link]:
        """Note the snapshots of the chain in RAM that N_NEWEST others follow, counting the new one: they are the least useful. Returns those that
        were not noted before."""
        on_chain: dict[int, list[Link]] = defaultdict(list)
        for i, parent in enumerate([root, *(link.key for link in chain[:-1])]):
            first = i * BLOCK_TOKENS
            for one in self._ram.following(parent, snapshots=True):
                if first + one.link.n < len(tokens) and np.array_equal(one.tokens, tokens[first : first + one.link.n]):
                    on_chain[first + one.link.n].append(one.link)
        passed = [link for position in sorted(on_chain, reverse=True)[N_NEWEST - 1 :] for link in on_chain[position]
                  if link.key not in self._ram.passed]
        self._ram.passed.update(link.key for link in passed)
        return passed


def _without(missed: Miss | None, reaches: int, n_rows: int, n: int) -> Miss | None:
    """The miss of a hit that reaches so many of n tokens, with rows of n_rows: the larger part of the others names the reason."""
    lacks = reaches < n_rows and (missed is None or missed.reason is MissReason.COLD and n_rows - reaches > n - n_rows)
    return Miss(MissReason.NO_CHECKPOINT, reaches) if lacks else missed
