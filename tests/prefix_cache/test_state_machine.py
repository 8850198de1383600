"""Any order of saves, snapshots, loads that other saves and evictions cross, pins, slots that need their cells and restarts, compared with a list of what
was saved. What happens to places: test_faults_machine.py."""

import shutil
import tempfile
import weakref
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.prefix_rows import BLOCK_BYTES, InSlot, check_rows, conversation, reachable, reader, state
from support.stores import load_all, n_restored, open_store

from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Conversation, KeptBlock, Reading, ReadWith
from edgekv.prefix_cache.coming import ComingBlock
from edgekv.prefix_cache.ram import Pins
from edgekv.prefix_cache.results import PrefixHit
from edgekv.prefix_cache.search import Match

AMPLE = 10_000
"""Blocks that no run fills."""

WHICH = st.sampled_from([0, 1, 2, -1, -1])
"""Half the time the newest: what two rules do to one conversation meets."""

LENGTH = st.sampled_from([1, 100, 255, 256, 257, 300, 512, 600, 700, 1500])
"""Few, so that conversations meet: in the middle of a block, at its end, one behind it."""

SINCE, ASKED = st.just(0) | LENGTH, st.just(AMPLE) | LENGTH
"""The first token that is not read exactly, and the end of what is asked for: half of them meet what decides, the others what is cut."""

MORE = st.sampled_from([0, 40])
"""Tokens that nobody has."""

SNAPSHOTS = st.lists(LENGTH, max_size=2)
GOES_ON = st.sampled_from([None, None, 0, 0, 256, 600])
"""As of `match_prefix`: None for a model that keeps only rows."""

PINNED = st.sampled_from([0, 0, 0, 50, 20])
"""Seconds."""

ONE, OTHER = (ReadWith(rounded=name, sampled=name, sparse=name) for name in (b"one", b"other"))
"""Settings of what is not read exactly."""

READING = st.sampled_from(Reading)
HOW = st.tuples(READING, st.sampled_from([ONE, ONE, OTHER]))
ACCEPTS = READING | st.just(Reading.SPARSE)

Said = tuple[np.ndarray, np.ndarray, ReadWith]
"""Tokens, readings and settings of a conversation."""


class Machine(RuleBasedStateMachine):
    """What holds whatever happens: rows are those of the tokens asked for, without a gap, and read no worse than was accepted; nothing is found that
    nobody saved; RAM stays within its bound; what is pinned stays. And where nothing had to go, everything is found that was saved."""

    @initialize(ram_blocks=st.sampled_from([0, 2, 6, AMPLE, AMPLE]), on_disk=st.booleans(), n=LENGTH,
                worst=st.sampled_from([Reading.EXACT, Reading.SPARSE, Reading.SPARSE]))
    def begin(self, ram_blocks, on_disk, worst, n):
        self.folder = Path(tempfile.mkdtemp()) if on_disk else None
        self.ram_bytes, self.worst, self.now = ram_blocks * BLOCK_BYTES, worst, 0.0
        self.conversations: list[Said] = []
        self.saved: list[Said] = []
        """At most this is found."""
        self.snapshots: list[Said] = []
        """The same of snapshots."""
        self.lost = not on_disk and ram_blocks != AMPLE
        """Not all of it need be there."""
        self.pins: list[tuple[Conversation, float]] = []
        """Prompts, and how long they stay."""
        self.matches: list[tuple[Match, int]] = []
        """Not loaded yet, with the number of inserts before."""
        self.hits: list[tuple[PrefixHit, Match]] = []
        self.counted: set[object] = set()
        """Blocks of hits that took RAM when they were loaded."""
        """Not given back yet, with what was asked."""
        self.slots: list[list[weakref.ref[InSlot]]] = []
        """The rows that an insert left in their cells, as long as anybody refers to them."""
        self.open()
        self.talk(0, 0, n, (Reading.EXACT, ONE), 0, 0, [])

    def open(self):
        self.store = open_store(self.folder, self.ram_bytes)
        self.store.ram.pins = Pins(self.store.ram, lambda: self.now)

    def teardown(self):
        if hasattr(self, "store"):
            self.stop()
            if self.folder is not None:
                shutil.rmtree(self.folder)

    def stop(self):
        self.matches.clear()
        while self.hits:
            self.release(0, -1)
        while self.slots:
            self.take_cells(0, 0)  # a context goes before its store
            self.slots.pop(0)
        with self.store.ram.lock:
            assert not self.store.ram.in_use and self.store.in_flight.n_bytes == 0
            assert self.store.stats().ram.n_bytes == sum(block.n_bytes for block in self.in_ram())
        self.store.close()

    # ---- what a server does ----------------------------------------------------------------------------------------------------------

    @rule(which=WHICH, at=LENGTH, n=LENGTH, how=HOW, since=SINCE, pinned_for=PINNED, snapshots=SNAPSHOTS, in_slot=st.booleans())
    def talk(self, which, at, n, how, since, pinned_for, snapshots, in_slot=False):
        """A conversation goes on, or another one leaves it. how: its tokens from `since` on are read, where they are new."""
        reading, read_with = how
        before, readings, its = self.conversations[which % len(self.conversations)] if self.conversations else (np.empty(0), np.empty(0), read_with)
        tokens = conversation(n, len(self.conversations), after=before[:at])
        first = len(tokens) - n
        labels = np.concatenate([readings[:first], np.zeros(n)]).astype(np.uint8)
        labels[max(since, first):] = min(reading, self.worst)
        self.conversations.append((tokens, np.maximum.accumulate(labels), its if readings[:first].any() else read_with))
        self.insert(len(self.conversations) - 1, len(tokens), pinned_for, snapshots, in_slot=in_slot)

    @rule(which=WHICH, n=LENGTH, pinned_for=PINNED, snapshots=SNAPSHOTS, again=st.none() | READING, in_slot=st.booleans())
    def insert(self, which, n, pinned_for, snapshots, again=None, in_slot=False):
        """again: how all was read this time. in_slot: the rows stay in their cells."""
        further, labels, read_with = self.conversations[which % len(self.conversations)]
        labels = labels if again is None else np.full(len(further), min(again, self.worst), np.uint8)
        tokens, readings = further[:n], labels[:n]
        stays = ((len(tokens), self.now + pinned_for),) if pinned_for and not in_slot else ()
        read = reader(tokens, readings)

        def hold(first: int, n: int) -> InSlot:
            rows = InSlot(read(first, n), n)
            self.slots[-1].append(weakref.ref(rows))
            return rows

        self.slots += [[]] if in_slot else []
        of = Conversation(tokens, read_with=read_with)
        saved = self.store.insert(of._replace(stays=stays), readings, hold if in_slot else read)
        n_kept = saved.n_known + saved.n_new
        assert n_kept + saved.n_left_out == len(tokens)
        if not saved.n_left_out:
            assert self.store.insert(of, np.maximum(readings, self.worst), not_again).n_known == len(tokens)
        self.saved.append((tokens[:n_kept], readings[:n_kept], read_with))
        if stays and not saved.n_left_out:
            self.pins.append((of, self.now + pinned_for))
        for at in snapshots:  # also of tokens whose rows are not there yet
            if self.store.insert_snapshot(of._replace(tokens=further[:at]), labels[:at], state(further[:at])):
                self.snapshots.append((further[:at], labels[:at], read_with))

    @rule(which=WHICH, n=LENGTH, how=HOW, since=SINCE, again=READING | st.just(Reading.EXACT), more=MORE, snapshots=SNAPSHOTS)
    def read_again(self, which, n, how, since, again, more, snapshots):
        """Another slot reads a conversation better or worse, and who asks takes the better, and the furthest snapshot."""
        self.talk(which, 600, n, how, since, 0, snapshots)
        self.insert(-1, AMPLE, 0, [], again)
        self.match(-1, AMPLE, more, 0, Reading.SPARSE, 0 if snapshots else None, None, True)

    @precondition(lambda self: self.slots)
    @rule(which=WHICH, first=st.integers(0, 2), parks=st.booleans())
    def take_cells(self, which, first, parks=False):
        """A slot needs the cells of an insert's blocks from the first-th on; parks: their rows have left these. Hits still get what they found there; else
        it goes where RAM has no room."""
        rows = self.slots[which % len(self.slots)]
        taken, rows[first:] = rows[first:], []
        self.lost |= self.folder is None and self.ram_bytes != AMPLE * BLOCK_BYTES
        for ref in taken:
            if (rows := ref()) is not None:
                rows.parked = parks
                rows.needed()
                assert parks or not rows.held, "the slot waits for ever"

    @rule(which=st.sets(st.integers(0, 3)))
    def come_back(self, which):
        """Parked rows lie in a slot again, as far as their pages fit there."""
        parked = [block for block in self.in_ram() if block.rows is not None and block.rows.parked]

        def put(rows: list[InSlot], cells: list[np.ndarray]) -> list[bool]:
            for i, one in enumerate(rows):
                assert one.held and len(cells[i]) == i
                one.parked = i not in which
            return [i in which for i in range(len(rows))]

        back = self.store.ram.put_back(parked, [np.arange(i, dtype=np.uint32) for i in range(len(parked))], put)
        assert back == [i in which for i in range(len(parked))] == [block.n_bytes == 0 for block in parked]
        self.slots.append([weakref.ref(block.rows) for block, is_back in zip(parked, back) if is_back])

    @rule(which=WHICH, n=LENGTH, first=st.integers(0, 2))
    def slot_is_needed_in_a_load(self, which, n, first):
        """A hit has found rows in a slot, and gets them although RAM may have no room."""
        self.talk(which, 600, n, (Reading.EXACT, ONE), 0, 0, [], in_slot=True)
        self.match(-1, AMPLE, 0, 0, Reading.SPARSE, None, None, False)
        self.load(-1, at_once=False)
        self.take_cells(-1, first)
        self.release(-1, 9)

    @rule(which=WHICH, at=ASKED, more=MORE, n_have=st.just(0) | LENGTH, accepts=ACCEPTS, goes_on=GOES_ON,
          read_with=st.sampled_from([None, None, ONE, OTHER]), now=st.booleans())
    def match(self, which, at, more, n_have, accepts, goes_on, read_with, now):
        """It changes nothing: blocks in RAM stay in the order in which they go. read_with: None for the conversation's own."""
        tokens, _, its = self.conversations[which % len(self.conversations)]
        asked = Conversation(conversation(more, 1000, after=tokens[:at]), read_with=read_with or its)
        all_there = self.all_there()
        before = self.in_ram(), self.store.stats()
        match = self.store.match_prefix(asked, accepts, n_have, None if goes_on is None else min(goes_on, n_have))
        assert self.folder is not None or (self.in_ram(), self.store.stats()) == before
        assert match.n_tokens == self.most(match) if all_there else match.n_tokens <= self.most(match)
        self.matches.append((match, len(self.saved)))
        if now:
            self.load(-1, at_once=True)

    @precondition(lambda self: self.matches)
    @rule(which=WHICH, at_once=st.booleans())
    def load(self, which, at_once):
        """What is still there of a match, whatever happened since."""
        match, n_inserts = self.matches.pop(which % len(self.matches))
        all_there = self.all_there() and n_inserts == len(self.saved)  # a longer block replaces a tail
        hit = load_all(self.store, match) if at_once else self.store.load(match)
        if match.goes_on is None:
            assert hit.n_tokens == match.n_tokens if all_there else hit.n_tokens <= match.n_tokens
            if all_there and hit.pieces:
                assert hit.pieces[-1].reading <= self.best_label(match, hit.end), "the worse of two chains"
        else:
            at = 0 if hit.snapshot is None else hit.snapshot.position
            assert at <= self.furthest(match)
            assert at >= self.furthest(match, Reading.EXACT) or not (all_there and self.reaches(match, Reading.EXACT) == self.reaches(match))
        if at_once:
            self.check(hit, match)
        else:
            self.hits.append((hit, match))
            self.counted.update(piece.block for piece in hit.pieces if takes_ram(piece.block))

    def check(self, hit: PrefixHit, match: Match) -> None:
        asked, n_have = match.asked.tokens, match.n_have
        n = check_rows(hit, asked, n_have, match.accepts)
        if hit.snapshot is None:
            assert not n or match.goes_on is None, "rows without a snapshot"
            return
        at = hit.snapshot.position
        assert n == max(0, at - n_have), f"{n} rows behind {n_have}, and the snapshot is at {at}"
        assert np.array_equal(hit.snapshot.read(), state(asked[:at])), f"what is at {at} is of other tokens"

    @precondition(lambda self: self.hits)
    @rule(which=WHICH, n=st.integers(-1, 4))
    def release(self, which, n):
        """The rows of a hit come, all or the first, or it is given up, whatever happened since it was found."""
        hit, match = self.hits.pop(which % len(self.hits))
        if n < 0:
            self.store.release(hit)
            return
        assert all(piece.read(range(self.store.identity.layout.n_layers)) is not None for piece in hit.pieces[:n])
        self.check(hit if hit.snapshot is not None and n >= len(hit.pieces) else hit.first_pieces(n), match)
        self.store.release(hit, min(n, len(hit.pieces)))

    @rule(seconds=st.integers(1, 60))
    def wait(self, seconds):
        self.now += seconds
        self.pins = [pin for pin in self.pins if pin[1] > self.now]

    @rule()
    def begin_again(self):
        """The process ends and another begins, with the same folder."""
        self.all_there()
        self.stop()
        self.pins.clear()
        if self.folder is None:
            self.saved.clear()
            self.snapshots.clear()
        self.open()

    # ---- what holds ------------------------------------------------------------------------------------------------------------------

    def all_there(self) -> bool:
        """Whether all that was saved must be found. What waited for the writer too long may be dropped, which is counted."""
        if self.folder is not None:
            assert self.store.flush(20), "writing takes too long"
        self.lost |= self.store.stats().n_dropped > 0
        return not self.lost

    def most(self, match: Match) -> int:
        """Tokens of a match, where nothing had to go."""
        return max(0, self.reaches(match) - match.n_have)

    def reaches(self, match: Match, worst: Reading = Reading.SPARSE) -> int:
        """Tokens of a match that are there, read so well."""
        return max([0, *(reachable(*one[:2], match.asked.tokens, min(worst, accepted(one, match))) for one in self.saved)])

    def best_label(self, match: Match, n: int) -> int:
        """Of the block that ends a match of n tokens."""
        tokens, end = match.asked.tokens, -(-n // BLOCK_TOKENS) * BLOCK_TOKENS
        return min(one[1][:end][-1] for one in self.saved if reachable(*one[:2], tokens, accepted(one, match)) == n)

    def furthest(self, match: Match, worst: Reading = Reading.SPARSE) -> int:
        """Where a snapshot lies, read so well, that has its rows, or rows in place; 0: there is none."""
        asked = match.asked.tokens
        last = min(len(asked) - 1, match.n_have + match.n_tokens)
        return max([0, *(len(one[0]) for one in self.snapshots if match.goes_on < len(one[0]) <= last
                         and np.array_equal(one[0], asked[: len(one[0])]) and one[1][-1] <= min(worst, accepted(one, match)))])

    def in_ram(self) -> list[KeptBlock]:
        return [block for link in self.store.ram.links() if (block := self.store.ram.get(link.key))]

    @invariant()
    def ram_is_bounded(self):
        """With what hits hold: a block that leaves RAM while its rows are needed frees nothing. A tail leaves it all the same where a longer block
        takes its place, and lives as long as the hit."""
        with self.store.ram.lock:
            there = self.in_ram()
            held = {piece.block for hit, _ in self.hits for piece in hit.pieces
                    if takes_ram(piece.block) and piece.n_block == BLOCK_TOKENS
                    and piece.block in self.counted | set(there)}
            assert sum(block.n_bytes for block in held | set(there)) <= self.store.stats().ram.n_bytes <= self.store.most_ram_bytes

    @rule()
    def pinned_prompts_are_there(self):
        """Not only where something is pinned: that depends on how soon a writer made room, and Hypothesis wants the same rules again."""
        assert self.folder is None or not self.pins or self.store.flush(20)
        for of, _ in self.pins:
            assert n_restored(self.store, of.tokens, 0, Reading.SPARSE, read_with=of.read_with) == len(of.tokens)


def takes_ram(block: KeptBlock | ComingBlock) -> bool:
    return block.n_bytes > 0 if isinstance(block, KeptBlock) else block.payload is not None


def accepted(one: Said, match: Match) -> Reading:
    """The worst reading of a conversation's rows that a match takes."""
    return match.accepts if one[2] == match.asked.read_with else Reading.EXACT


def not_again(first: int, n: int) -> np.ndarray:
    raise AssertionError(f"the store has the rows of {n} tokens from {first} on")


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None, derandomize=True)
