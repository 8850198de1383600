"""The prefix store of one model: what was read once is found again by its tokens."""

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from msgspec import structs

from edgekv.common.enums import MissReason
from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Conversation, HeldRows, KeptBlock, Link, Reading, ReadWith, child_link, snapshot_link
from edgekv.prefix_cache.coming import ComingBlock, InFlight
from edgekv.prefix_cache.identity import ModelIdentity, SnapshotLayout
from edgekv.prefix_cache.place import Outcome, Place, Tier, unreadable
from edgekv.prefix_cache.ram import Ram
from edgekv.prefix_cache.results import BlockPiece, Holds, Miss, PlaceStats, PrefixHit, Saved, StoreStats
from edgekv.prefix_cache.search import ChainStep, Match, Search, serving, up_to_snapshot
from edgekv.prefix_cache.settings import StoreSettings, open_places
from edgekv.prefix_cache.writer import Writer

MOST_WAIT_S = 0.2
"""The longest wait for the writer, where RAM is full of unwritten blocks: of an insert, and of blocks that leave a slot together. Tokens without room are
then left out."""

MOST_FLUSH_S = 10.0
"""The longest wait for writes that the next step would cut off."""

SOON_S = 1.0
"""A decode waits so long at most for rows of a far place that come while it runs."""

UNDER_WAY_BYTES = 128 << 20
"""Bytes that may wait in RAM for the writer if the bound of RAM is 0."""


class PrefixStore:
    """Thread-safe. A prompt's rows: `match_prefix`, `load`, `release`. Those that were computed: `insert`. What stays: `pin`; what goes: `evict`."""

    def __init__(self, identity: ModelIdentity, settings: StoreSettings, ram: Ram | None = None, answering: Callable[[], bool] = lambda: False):
        """`ram`: shared with stores of other identities and the same bound, by default its own. `answering`: whether writes wait now, a while. Raises
        ConfigError for an address that is none."""
        self.identity, self.settings = identity, settings
        self.places = tuple(open_places(identity, settings))
        self.most_ram_bytes = settings.ram_bytes or (UNDER_WAY_BYTES if self.places else 0)
        """Never more than this is kept in RAM."""
        self._root = identity.root_key()
        self.ram = Ram() if ram is None else ram
        self._lock = self.ram.lock
        self.in_flight = InFlight(identity.layout)
        """Rows on their way into sequences."""
        self._writers = [Writer(place, self._lock, self.ram.to_write, self._written, lambda: not self.ram.hurried and answering())
                         for place in self.places]
        with self._lock:
            self.ram.writers += self._writers
        self._stats, self._closed = StoreStats(), False
        self._passed_by: dict[bytes, str] = {}  # keys of the last such blocks, and the places that have them: these get no second copy

    # ---- loading ---------------------------------------------------------------------------------------------------------------------

    def match_prefix(self, asked: Conversation, accepts: Reading, n_have: int = 0, goes_on: int | None = None, near: bool = False) -> Match:
        """How far a stored chain goes, and why no further. It changes and holds nothing. The chain's label is at most `accepts`; its inexact tokens
        were read with the settings of `asked`. `n_have`: the first tokens, whose rows are in place. `near`: no far place is asked.
        `goes_on`: of a model that keeps more than rows, the number of tokens (at most n_have) behind which the sequence can go on by
        itself; what is loaded then ends at the last snapshot after them, and has no pieces if there is none."""
        places = tuple(place for place in self.places if not (near and place.far))
        match = Match(self._complete(asked), accepts, n_have, goes_on, places)
        return match if self._needless(match) else Search([self.ram, *places], match).run()

    def _complete(self, of: Conversation) -> Conversation:
        return of._replace(tokens=np.ascontiguousarray(of.tokens, dtype=np.int32), root=of.root or self._root)

    def _needless(self, match: Match) -> bool:
        return self._closed or (not match.n_asked and match.goes_on is None)

    def load(self, match: Match) -> PrefixHit:
        """The rows that were found, and are still there. They stay in RAM until the caller gives them to `release`, as it must, whatever happens.

        The pieces follow each other without gaps, from `n_have` on. Rows that are not in RAM are read when the caller asks the pieces for them, and
        never more than `in_flight` and the bound of RAM at once."""
        if self._needless(match):
            return PrefixHit()
        n_have, missed, places = match.n_have, match.missed, match.places
        pieces: list[BlockPiece] = []
        holds, at = Holds(), 0
        for step, opened in zip(match.steps, self._open(match.steps, n_have, holds, places)):
            first, at = max(at, n_have), at + step.n
            if at <= n_have:
                continue
            if opened is None:
                missed = Miss(unreadable(places), first)
                break
            block, source = opened
            read = partial(block.read, flight=self.in_flight) if isinstance(block, ComingBlock) else block.read
            pieces.append(BlockPiece(first, at - first, step.n - (at - first), step.link.n, block.link.label, source, read, block))
        if missed is not None and missed.reason is MissReason.COLD and unreadable(self.places) is MissReason.TIER_DOWN:
            missed = Miss(MissReason.TIER_DOWN, missed.at)
        hit = PrefixHit(tuple(pieces), tuple(step.link for step in match.steps), holds, None, missed)
        if match.goes_on is not None:
            hit = up_to_snapshot(hit, match, match.goes_on, self.ram)
        self._let_stay(hit)
        return hit

    @property
    def has_far(self) -> bool:
        """A place can be asked whose answer may take long."""
        return any(place.far and place.working for place in self.places)

    def fetch(self, hit: PrefixHit, worth: Callable[[], int], alone: bool = False) -> PrefixHit:
        """Read far pieces into memory, on the calling thread, as far as there is room and `worth()`, asked before each, says more pieces; the others
        come when they are asked for. Returns the pieces before the first that could not be read. alone: nobody else is answered, and a decode may wait
        for rows. Where the rate of those before promises the rest within SOON_S, the rest goes into its cells as it comes; RAM keeps no whole block of it."""
        far = {place.name for place in self.places if place.far}
        coming = [(i, piece.skip + piece.n == BLOCK_TOKENS, piece.block) for i, piece in enumerate(hit.pieces)
                  if isinstance(piece.block, ComingBlock) and piece.source in far]
        n_bytes, n_rounded = sum(block.n_bytes for *_, block in coming), sum(block.link.rounded for *_, block in coming)
        for i, _, block in coming:
            if block.payload is None or worth() <= i:
                break
            if alone and hit.snapshot is None and block.rate.brings(n_bytes, SOON_S, not n_rounded):
                with self._lock:
                    passed = sum(one.n_bytes for _, whole, one in coming if whole and one.pass_by())  # of a prompt only whole blocks are inserted at once
                    self.ram.n_bytes -= passed
                    hit.holds.n_bytes -= passed
                break
            if not block.fetch(self.in_flight):
                return hit.cut(i, unreadable(self.places))
            n_bytes, n_rounded = n_bytes - block.n_bytes, n_rounded - block.link.rounded
        kept = hit.snapshot
        if kept is not None and kept.source in far and worth() == len(hit.pieces) and kept.read() is None:
            return hit.cut(0, unreadable(self.places))
        return hit

    def release(self, hit: PrefixHit, n_loaded: int | None = None) -> None:
        """No more rows of a hit are needed; those of the first `n_loaded` pieces are in place (None: it is given up, and counts nowhere). Blocks that
        were to stay in RAM do, and the chain counts as the most recently used one everywhere. From any thread."""
        keys = {link.key for link in hit.chain}
        with self._lock:
            self.ram.let_go(hit.holds)
            if n_loaded is None:
                return
            for piece in hit.pieces[:n_loaded]:
                self._take_in(piece.block, keys)
            self._passed_by = {block.link.key: piece.source for piece in hit.pieces[:n_loaded]
                               if isinstance(block := piece.block, ComingBlock) and block.payload is None and not block.link.rounded}
            chain = list(hit.chain)
            if hit.snapshot is not None and n_loaded == len(hit.pieces):
                self._take_in(hit.snapshot.block, keys)
                self.ram.passed.discard(hit.snapshot.link.key)
                chain.append(hit.snapshot.link)
            self._used(chain)
            counts = {Ram.name: self._stats.ram, **{place.name: place.stats for place in self.places}}
            for piece in hit.pieces[:n_loaded]:
                counts[piece.source].hit_tokens += piece.n

    def _take_in(self, block: KeptBlock | ComingBlock, chain: set[bytes]) -> None:
        """Keep blocks from below that are in memory, if RAM has room besides the chain. Call it with the lock held."""
        if not isinstance(block, ComingBlock) or block.payload is None or block.link.key in self.ram:
            return
        if self.settings.ram_bytes and self._make_room(block.n_bytes, chain, None):
            self._put(KeptBlock(block.link, block.tokens, block.layout, block.payload))
            self.ram.below.add(block.link.key)

    def _open(self, steps: Sequence[ChainStep], n_have: int, holds: Holds, places: Sequence[Place]) -> list[tuple[KeptBlock | ComingBlock, str] | None]:
        """The block of each step, and the tier that it came from; None if it is not needed or cannot be had. Blocks in RAM stay there."""
        opened: list[tuple[KeptBlock | ComingBlock, str] | None] = [None] * len(steps)
        ends = np.cumsum([step.n for step in steps])
        needed = [i for i, end in enumerate(ends) if end > n_have]
        tiers: list[Tier] = [self.ram, *places]
        for tier in tiers:
            wanted = [i for i in needed if opened[i] is None]
            if wanted and tier.working:
                for i, block in zip(wanted, tier.open([steps[i].link for i in wanted])):
                    if block is not None:
                        opened[i] = block, tier.name
                        if tier is self.ram:
                            holds.keys.append(steps[i].link.key)
        return opened

    def _let_stay(self, hit: PrefixHit) -> None:
        """Make room in RAM for the blocks that are about to be read, from the first on, as far as there is any."""
        keys = {link.key for link in hit.chain}
        with self._lock:
            for piece in hit.pieces if self.settings.ram_bytes else ():
                if isinstance(block := piece.block, ComingBlock):
                    if not self._make_room(block.n_bytes, keys, None):
                        break
                    block.stay()
                    self.ram.n_bytes += block.n_bytes
                    hit.holds.n_bytes += block.n_bytes

    # ---- inserting -------------------------------------------------------------------------------------------------------------------

    def insert(self, of: Conversation, readings: np.ndarray, rows: Callable[[int, int], np.ndarray | HeldRows], rounded: np.ndarray | None = None) -> Saved:
        """Keep the rows of a conversation. `readings`: Reading of each token, uint8 [n]. `rounded`: whether a place rounded the rows of each token,
        bool [n], so that none may again; None: none may round them.

        `rows(first, n)` is called on the calling thread, only for what the store lacks: the payload of these tokens, uint8 [layout.block_bytes(n)],
        which then belongs to the store; or they stay where they are, and RAM gets them when their cells are needed. Places below RAM are written to
        afterwards, by their threads.
        """
        of = self._complete(of)
        tokens, labels = of.tokens, np.maximum.accumulate(np.asarray(readings, dtype=np.uint8))
        if len(tokens) != len(labels):
            raise ValueError(f"{len(tokens)} tokens have {len(labels)} readings")
        if self._closed or not (self.settings.ram_bytes if of.in_memory else self.most_ram_bytes):
            return Saved(n_left_out=len(tokens))
        deadline = time.monotonic() + MOST_WAIT_S
        chain: list[Link] = []
        n_known = n_new = 0
        for part, link, known, may_round in self._blocks(of, labels, rounded):
            if known:
                n_known += len(part)
            else:
                block = self._block(link, part.copy(), rows(n_known + n_new, len(part)), may_round)
                with self._lock:
                    if not self._make_room(block.n_bytes, {one.key for one in chain}, deadline):
                        break
                    self._put(block, of.in_memory)
                    self._write(link.key, of.in_memory)
                n_new += len(part)
            chain.append(link.copy(may_round))
        with self._lock:
            if not of.in_memory:
                self.ram.alone.difference_update(link.key for link in chain)
            self._used(chain)
            for n, until in of.stays:
                last = (n - 1) // BLOCK_TOKENS
                if 0 < n <= len(tokens) and last < len(chain):
                    self.pin(self.ram.pinned_like(chain[last], tokens[last * BLOCK_TOKENS : n]), until)
        return Saved(n_known, n_new, len(tokens) - n_known - n_new, tuple(chain))

    def insert_snapshot(self, of: Conversation, readings: np.ndarray, payload: np.ndarray) -> bool:
        """Keep what a sequence keeps besides rows, behind exactly these tokens; False: there is no room. `payload`, uint8 [bytes], then belongs
        to the store; the others as in `insert`, which keeps the rows, before this or afterwards."""
        if self._closed or not (self.settings.ram_bytes if of.in_memory else self.most_ram_bytes):
            return False
        if payload.dtype != np.uint8 or payload.ndim != 1:
            raise ValueError(f"a snapshot is uint8 [bytes], not {payload.dtype} {list(payload.shape)}")
        of = self._complete(of)
        chain = self._chain(of, readings)
        link = chain[-1]
        block = KeptBlock(link, of.tokens[len(of.tokens) - link.n :].copy(), SnapshotLayout(payload.nbytes), payload)
        with self._lock:
            if link.key not in self.ram:
                passed = self.ram.pass_over(chain, of)
                if not self._make_room(block.n_bytes, {one.key for one in chain}, None):
                    return False
                self.ram.put(block)
                self._write(link.key, of.in_memory)
                for writer in self._writers:
                    writer.pass_over(passed)
            elif not of.in_memory and link.key in self.ram.alone:
                self._write(link.key, False)
            self.ram.passed.discard(link.key)
            self.ram.touch(one.key for one in chain)
        return True

    def has_snapshot(self, of: Conversation, readings: np.ndarray) -> bool:
        """Whether RAM or a near place has it, so that `insert_snapshot` of these has nothing to do."""
        if self._closed:
            return False
        link = self._chain(self._complete(of), readings)[-1]
        with self._lock:
            in_ram = link.key in self.ram and link.key not in self.ram.alone
        return in_ram or any(place.have([link])[0] for place in self._near_places())

    def _chain(self, of: Conversation, readings: np.ndarray) -> list[Link]:
        """The links of the whole blocks before a snapshot, as an insert of their rows gives them, and its own."""
        tokens = of.tokens
        if len(tokens) != len(readings) or not len(tokens):
            raise ValueError(f"a snapshot follows one token or more, and {len(tokens)} tokens have {len(readings)} readings")
        labels = np.maximum.accumulate(np.asarray(readings, dtype=np.uint8))
        n_whole, worst = len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS, Reading(labels[-1])
        chain = [link for _, link, _, _ in self._blocks(of._replace(tokens=tokens[:n_whole]), labels)]
        return [*chain, snapshot_link(chain[-1].key if chain else of.root, worst, tokens[n_whole:], of.read_with.of(worst))]

    def _near_places(self) -> list[Place]:
        return [place for place in self.places if not place.far and place.working]

    def _blocks(self, of: Conversation, labels: np.ndarray, rounded: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, Link, bool, bool]]:
        """Each block of a conversation: its tokens, its link, whether a tier has it, and whether places may round it. `labels`: readings that never fall."""
        parent, least = of.root, Reading.EXACT
        for first in range(0, len(of.tokens), BLOCK_TOKENS):
            part = of.tokens[first : first + BLOCK_TOKENS]
            reading = Reading(labels[first + len(part) - 1])
            may_round = rounded is not None and of.read_with.takes_rounded and not rounded[first : first + len(part)].any()
            known = self._known(parent, part, range(least, reading + 1), of.read_with, may_round)
            link = known or child_link(parent, reading, part, of.read_with.of(reading))
            yield part, link, known is not None, may_round
            parent, least = link.key, link.reading

    def _known(self, parent: bytes, part: np.ndarray, readings: range, read_with: ReadWith, may_round: bool) -> Link | None:
        """A block that RAM or a near place has and that begins with `part`: the one of the best of some readings. Rounded copies count where these
        rows are to be rounded, or may have been."""
        rounded = may_round or Reading.ROUNDED in readings
        near: list[Tier] = [self.ram, *self._near_places()]
        if len(part) == BLOCK_TOKENS:
            links = [child_link(parent, Reading(reading), part, read_with.of(Reading(reading)), rounded) for reading in readings]
            had = [tier.have(links) for tier in near]
            return next((link for i, link in enumerate(links) if any(one[i] for one in had)), None)
        children = [child for tier in near for child in tier.children([parent])[0] if np.array_equal(child.tokens[: len(part)], part)]
        return min((child.link for child in serving(children, readings, read_with, rounded)), key=lambda link: link.reading, default=None)

    def _block(self, link: Link, tokens: np.ndarray, rows: np.ndarray | HeldRows, may_round: bool) -> KeptBlock:
        layout, n_bytes = self.identity.layout, self.identity.layout.block_bytes(len(tokens))
        if isinstance(rows, np.ndarray):
            if rows.dtype != np.uint8 or rows.shape != (n_bytes,):
                raise ValueError(f"the rows of {len(tokens)} tokens are uint8 [{n_bytes}], not {rows.dtype} {list(rows.shape)}")
            return KeptBlock(link, tokens, layout, rows, None, may_round)
        one = weakref.ref(block := KeptBlock(link, tokens, layout, None, rows, may_round))

        def needed(since: float | None = None) -> None:
            if (block := one()) is not None:
                deadline = (since or time.monotonic()) + MOST_WAIT_S
                self.ram.take_out(block, bool(self.settings.ram_bytes), self.most_ram_bytes, deadline, self._stats)

        rows.needed = needed
        return block

    # ---- RAM, with the lock held -----------------------------------------------------------------------------------------------------

    def _write(self, key: bytes, in_memory: bool) -> None:
        has = self._passed_by.get(key)
        self.ram.write(key, None if in_memory else [writer for writer in self._writers if writer.place.name != has])
        if has and not in_memory:
            self.ram.below.add(key)

    def _put(self, block: KeptBlock, in_memory: bool = False) -> None:
        if expires := self.ram.put(block):
            for writer in () if in_memory else self._writers:
                writer.pin(block.link.key, expires)

    def _make_room(self, n_bytes: int, chain: set[bytes], deadline: float | None) -> bool:
        return self.ram.make_room(n_bytes, self.most_ram_bytes, chain, deadline, self._stats)

    def _used(self, chain: Sequence[Link]) -> None:
        self.ram.touch(link.key for link in chain)
        for writer in self._writers if chain else ():
            writer.used(chain)

    def _written(self, link: Link, outcome: Outcome) -> None:
        if link.key not in self.ram:
            return
        if outcome is Outcome.WRITTEN:
            self.ram.below.add(link.key)
        if not self.settings.ram_bytes and not self.ram.unwritten(link.key):
            self.ram.remove(link.key)

    def evict(self, keys: set[bytes]) -> None:
        """Remove blocks and all that follow them from RAM, and every snapshot that may follow them. When this returns, no write of them is under way."""
        with self._lock:
            self.ram.remove_all(keys)
        self.flush(MOST_FLUSH_S)

    def evict_bytes(self, n_bytes: int) -> bool:
        """Evict n_bytes or more of what RAM has of all stores that share it, but nothing that is pinned or in use; whether any went."""
        with self._lock:
            before = self.ram.n_bytes
            self.ram.make_room(0, max(0, before - n_bytes), set(), None, self._stats)
            return self.ram.n_bytes < before

    # ---- pins --------------------------------------------------------------------------------------------------------------------------

    def pin(self, key: bytes, expires: float) -> None:
        """The chain to this block stays until then, in seconds since 1970, or longer if it does so already: in RAM, or in a folder that has it."""
        with self._lock:
            until = self.ram.pins.add(key, expires)
            for writer in self._writers if key not in self.ram.alone else ():
                writer.pin(key, until)

    def unpin(self, key: bytes) -> None:
        with self._lock:
            self.ram.pins.remove(key)
            for writer in self._writers:
                writer.pin(key, 0.0)

    # ---- the end, and figures --------------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until every block is written that can be; False if `timeout_s` was not enough."""
        with self._lock:
            return self.ram.hurry(lambda: self._lock.wait_for(lambda: all(writer.idle for writer in self._writers), timeout_s))

    def close(self, timeout_s: float = MOST_FLUSH_S) -> None:
        """Write the waiting blocks, for so long, and stop. A closed store has nothing and keeps nothing."""
        self.flush(timeout_s)
        self._closed = True
        for writer in self._writers:
            writer.close()
        for place in self.places:
            place.close()

    def stats(self) -> StoreStats:
        """A copy; counts since the store was opened, bytes and blocks as they are now: in RAM those of all stores that share it."""
        with self._lock:
            ram = structs.replace(self._stats.ram, n_blocks=len(self.ram) - self.ram.n_in_slots, n_bytes=self.ram.n_bytes)
            lower = {place.name: structs.replace(place.stats) for place in self.places}
            return structs.replace(self._stats, ram=ram, disk=lower.get("disk", PlaceStats()), remote=lower.get("remote", PlaceStats()),
                                   n_unwritten=len({key for writer in self._writers for key in writer.pending()}),
                                   n_in_slots=self.ram.n_in_slots)
