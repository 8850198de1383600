"""Finds the stored chain that goes furthest along a sequence of tokens, and why it goes no further."""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from edgekv.common.enums import MissReason
from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Conversation, Link, Reading, ReadWith, child_link, n_common, snapshot_link
from edgekv.prefix_cache.place import Child, Place, Tier
from edgekv.prefix_cache.results import KeptSnapshot, Miss, PrefixHit, pieces_up_to

AHEAD = 512
"""Blocks of a chain that a far tier is asked for at once."""


class ChainStep(Struct, frozen=True):
    """A block of the chain that was found: the first `n` of its tokens are those asked for."""

    link: Link
    n: int


class Match(Struct, frozen=True, eq=False):
    """What the tiers say they have of a conversation; `PrefixStore.match_prefix` has the parameters. It holds nothing: some of it may be gone
    when it is loaded."""

    asked: Conversation
    accepts: Reading
    n_have: int
    goes_on: int | None
    places: tuple[Place, ...]
    """Those below RAM that were asked."""
    steps: tuple[ChainStep, ...] = ()
    missed: Miss | None = None
    """Why the chain goes no further; None: it has all."""

    @property
    def n_asked(self) -> int:
        return max(0, len(self.asked.tokens) - self.n_have)

    @property
    def n_tokens(self) -> int:
        """Tokens behind the first `n_have` whose rows are there. A model that keeps more than rows goes on at a snapshot among them."""
        return max(0, sum(step.n for step in self.steps) - self.n_have)


class Search:
    """The search of a match, over `tiers` from the fastest to the slowest. It remembers their answers."""

    def __init__(self, tiers: Sequence[Tier], match: Match):
        self._tiers, self._match = tiers, match
        self._tokens, self._root, self._read_with = match.asked[:3]
        self._accepts = match.accepts
        self._had: list[dict[bytes, bool]] = [{} for _ in tiers]

    def run(self) -> Match:
        """The match, with the longest chain, whose steps except the last are whole blocks."""
        ends = self._whole_blocks()
        n_whole = BLOCK_TOKENS * len(ends[0])
        rest = self._tokens[n_whole:]
        best: tuple[ChainStep, ...] = ends[0]
        n_best, n_refused, siblings = 0, 0, []
        for path in ends if len(rest) else ():
            parent = path[-1].link.key if path else self._root
            for tier in self._tiers:
                if n_best == len(rest) or not tier.working:
                    continue
                [children] = tier.children([parent])
                least = path[-1].link.reading if path else Reading.EXACT
                accepted = serving(children, range(least, self._accepts + 1), self._read_with, self._read_with.takes_rounded)
                n_refused = max([n_refused, *(n for child in children if (n := n_common(child.tokens, rest)) == min(len(child.tokens), len(rest)))])
                for child in accepted:
                    n = n_common(child.tokens, rest)
                    siblings.append((n, child))
                    if n > n_best or (n == n_best and n and child.link.label < best[-1].link.label):
                        n_best, best = n, (*path, ChainStep(child.link, n))
        position = n_whole + n_best
        if position == len(self._tokens):
            return replace(self._match, steps=best)
        again = runs(self._tokens[position:]) if siblings else set()
        diverged = any(self._goes_on(child, n, again) for n, child in siblings if n == n_best)
        why = MissReason.OTHER_SETTINGS if n_refused > n_best else MissReason.DIVERGED if diverged else MissReason.COLD
        return replace(self._match, steps=best, missed=Miss(why, position))

    # ---- whole blocks: their keys follow from the tokens -----------------------------------------------------------------------------

    def _whole_blocks(self) -> list[tuple[ChainStep, ...]]:
        """Every longest chain of whole blocks, the one with the lowest labels first."""
        ends: list[tuple[ChainStep, ...]] = [()]
        for first in range(0, len(self._tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            longer = []
            for path in ends:
                parent, least = (path[-1].link.key, path[-1].link.reading) if path else (self._root, Reading.EXACT)
                beside = self._links(parent, least, first)
                longer += [(*path, ChainStep(link, BLOCK_TOKENS)) for link in beside if self._is_there(link, beside, first)]
            if not longer:
                break
            ends = sorted(longer, key=lambda path: path[-1].link.reading)
        return ends

    def _is_there(self, link: Link, beside: list[Link], first: int) -> bool:
        for tier, had in zip(self._tiers, self._had):
            if link.key not in had:
                asked = self._ahead(beside, first) if tier.far else [link]
                had.update(zip((one.key for one in asked), tier.have(asked)))
            if had[link.key]:
                return True
        return False

    def _ahead(self, beside: list[Link], first: int) -> list[Link]:
        """`beside`, and for each block behind the best of them the links with which the chain may go on: where calls are dear, one asks for many."""
        links = [*beside]
        for at in range(first + BLOCK_TOKENS, len(self._tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS)[: AHEAD - 1]:
            beside = self._links(beside[0].key, beside[0].reading, at)
            links += beside
        return links

    def _links(self, parent: bytes, least: Reading, first: int) -> list[Link]:
        """The whole block behind `parent` from token `first` on, as it may have been read, the best first."""
        part = self._tokens[first : first + BLOCK_TOKENS]
        return [child_link(parent, Reading(reading), part, self._read_with.of(Reading(reading)), self._read_with.takes_rounded)
                for reading in range(least, self._accepts + 1)]

    # ---- near misses -----------------------------------------------------------------------------------------------------------------

    def _goes_on(self, child: Child, n: int, again: set[bytes]) -> bool:
        """Whether a block, in RAM or on disk, goes on for BLOCK_TOKENS or more behind its first n tokens, and soon has one of the runs `again`: then what
        differs is an insertion such as a date, and no new question."""
        rest = child.tokens[n:]
        below = (one.tokens for tier in self._tiers if not tier.far and tier.working for one in tier.children([child.link.key])[0])
        chains = [rest, *(np.concatenate([rest, more]) for more in below)] if len(rest) else []
        return any(len(one) >= BLOCK_TOKENS and not again.isdisjoint(runs(one, every=8)) for one in chains)


def serving(children: Iterable[Child], readings: range, read_with: ReadWith, rounded: bool) -> list[Child]:
    """The children that were read so, with these settings, which their links name then; the best and longest first. rounded: also rounded copies."""
    found = []
    for child in children:
        link = child_link(child.link.parent, child.link.reading, child.tokens, read_with.of(child.link.reading), child.link.rounded)
        if child.link.reading in readings and (rounded or not child.link.rounded) and link == child.link:
            found.append(Child(link, child.tokens))
    return sorted(found, key=lambda child: (child.link.label, -child.link.n))


def runs(tokens: np.ndarray, every: int = 1, n: int = 24) -> set[bytes]:
    """The runs of `n` tokens that begin at most BLOCK_TOKENS behind the first token, from the second on, `every` so many tokens."""
    return {tokens[i : i + n].tobytes() for i in range(1, min(BLOCK_TOKENS, len(tokens) - n) + 1, every)}


# ---- snapshots: where a hit ends --------------------------------------------------------------------------------------------------

def up_to_snapshot(hit: PrefixHit, match: Match, goes_on: int, ram: Tier) -> PrefixHit:
    """The hit up to the furthest snapshot that lies after `goes_on` tokens, before the last token, and not after the rows."""
    tokens, root, read_with, n_have = *match.asked[:3], match.n_have
    last = min(len(tokens) - 1, max(hit.end, n_have))
    parents = _parents_of_snapshots(hit.chain, tokens[:last], root, n_have, read_with)
    tiers: list[Tier] = [ram, *(place for place in match.places if place.working)]
    found: dict[tuple[str, bytes], list[Child]] = {}
    for i in range(len(parents) - 1, goes_on // BLOCK_TOKENS - 1, -1):
        first = i * BLOCK_TOKENS
        for tier, (link, its_tokens) in sorted(_snapshots_below(parents, i, tiers, found), key=lambda one: (-one[1].link.n, one[1].link.reading)):
            fits = (goes_on < first + link.n <= last and link.reading <= match.accepts and np.array_equal(its_tokens, tokens[first : first + link.n])
                    and link == snapshot_link(link.parent, link.reading, its_tokens, read_with.of(link.reading)))
            if fits and (block := tier.open([link])[0]) is not None:
                if tier is ram:
                    hit.holds.keys.append(link.key)
                kept = KeptSnapshot(first + link.n, tier.name, block)
                missed = _without(hit.missed, kept.position, last, len(tokens))
                return replace(hit, pieces=pieces_up_to(hit.pieces, kept.position), snapshot=kept, missed=missed)
    return replace(hit, pieces=(), missed=_without(hit.missed, goes_on, last, len(tokens)))


def _snapshots_below(parents: Sequence[bytes], i: int, tiers: Sequence[Tier], found: dict[tuple[str, bytes], list[Child]]) -> list[tuple[Tier, Child]]:
    """The snapshots of the i-th parent, by tier. A far one is asked for several parents at once; `found` keeps answers."""
    for tier in tiers:
        if (tier.name, parents[i]) not in found:
            asked = parents[max(0, i + 1 - AHEAD) if tier.far else i : i + 1]
            found.update(((tier.name, parent), children) for parent, children in zip(asked, tier.children(asked, snapshots=True)))
    return [(tier, child) for tier in tiers for child in found.get((tier.name, parents[i]), [])]


def _parents_of_snapshots(chain: Sequence[Link], tokens: np.ndarray, root: bytes, n_have: int, read_with: ReadWith) -> list[bytes]:
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


def _without(missed: Miss | None, reaches: int, n_rows: int, n: int) -> Miss | None:
    """The miss of a hit that reaches so many of n tokens, with rows of n_rows: the larger part of the others names the reason."""
    lacks = reaches < n_rows and (missed is None or missed.reason is MissReason.COLD and n_rows - reaches > n - n_rows)
    return Miss(MissReason.NO_CHECKPOINT, reaches) if lacks else missed
