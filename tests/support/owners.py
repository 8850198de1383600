"""Owners of a folder and a shared server of kept prefixes, and what each of them must find: the laws of tests/prefix_cache/test_faults_machine.py."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from hypothesis.stateful import RuleBasedStateMachine
from msgspec import structs
from support.faulty import said
from support.prefix_rows import BLOCK_BYTES, check_rows, conversation, identity, reachable, reader, state
from support.redis_server import RedisServer
from support.stores import load_all, n_restored

from edgekv.common.enums import CacheCodec
from edgekv.prefix_cache import codec, folder, remote, store, writer
from edgekv.prefix_cache.blocks import Conversation, Reading, ReadWith
from edgekv.prefix_cache.files import TEMPORARY, scan
from edgekv.prefix_cache.named import read_pins
from edgekv.prefix_cache.place import Outage
from edgekv.prefix_cache.results import Saved
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.prefix_cache.store import PrefixStore

EXACT, _, SAMPLED, _ = Reading
ONE = ReadWith(rounded=b"one", sampled=b"one", takes_rounded=True)
UNROUNDED, OTHER = ONE._replace(takes_rounded=False), ReadWith(sampled=b"other")
AMPLE = 10_000
"""Blocks that no run fills."""


class Kept(NamedTuple):
    """A conversation, how its tokens were read, and where there are snapshots."""

    tokens: np.ndarray
    readings: np.ndarray
    snapshots: tuple[int, ...]

    def of(self, n: int | None = None, **more: Any) -> Conversation:
        return Conversation(self.tokens[:n], read_with=ONE, **more)


def save(where: PrefixStore, one: Kept, **more: Any) -> Saved:
    """Rows and snapshots, and wait until each place that works has them."""
    saved = where.insert(one.of(**more), one.readings, reader(one.tokens, one.readings), np.zeros(len(one.tokens), bool))
    for at in one.snapshots:
        assert where.flush(20)
        where.insert_snapshot(one.of(at, in_memory=bool(more.get("in_memory"))), one.readings[:at], state(one.tokens[:at]))
    assert where.flush(20), "writing takes too long"
    return saved


def whole(where: PrefixStore, one: Kept) -> int:
    """Tokens that a store says it has; asking changes nothing."""
    return where.match_prefix(one.of(), SAMPLED).n_tokens


def found(where: PrefixStore, one: Kept, n_have: int = 0, accepts: Reading = SAMPLED, **of: Any) -> int:
    """Tokens that a store gives behind some, with their right rows."""
    return n_restored(where, one.tokens, n_have, accepts, **{"read_with": ONE} | of)


def snapshot(where: PrefixStore, one: Kept) -> int:
    """Where a prompt that goes on begins, with the right state and rows; damaged ones go."""
    asked = conversation(1, 1000, after=one.tokens)
    for _ in range(4):
        hit = load_all(where, where.match_prefix(Conversation(asked, read_with=ONE), SAMPLED, 0, 0))
        if hit.snapshot is None:
            return 0
        assert check_rows(hit, asked, 0, SAMPLED) == hit.snapshot.position
        if (payload := hit.snapshot.read()) is not None:
            assert np.array_equal(payload, state(asked[: hit.snapshot.position])), "it is of other tokens"
            return hit.snapshot.position
    raise AssertionError("damaged snapshots do not go")


def shared(one: Kept, other: Kept, worst: Reading = SAMPLED) -> int:
    """Tokens of one conversation that another one gives."""
    return reachable(other.tokens, other.readings, one.tokens, worst)


class Owners(RuleBasedStateMachine):
    """One owner goes on (`store`), others come and go beside it. The clock stands still within a rule."""

    redis: RedisServer | None = None

    def begin(self, where: str, ram_blocks: int, rounds: bool) -> None:
        """rounds: places below RAM keep what they would round, which here loses nothing."""
        self.stack, self.now, self.ticks = ExitStack(), 2e9, 0.0
        self.server = self.redis if where in ("server", "both") else None
        self.folder = None if where == "server" and self.server else Path(self.stack.enter_context(tempfile.TemporaryDirectory())) / "prefixes"
        if self.server is not None:
            self.server.client.flushall()
            self.server.client.config_set("maxmemory", 0)
        self.bounded, self.rounds = where == "bounded folder", rounds
        self.patch(codec, "pack_layer", lambda rows, *_: rows.tobytes())
        self.patch(codec, "unpack_layer", lambda packed, _layout, _layer, _n, _begins, out: np.copyto(out, np.frombuffer(packed, np.uint8)))
        self.ram_blocks = AMPLE if self.bounded else ram_blocks
        self.folder_bytes = 50_000 if self.bounded else 1 << 30
        for module in (folder, remote):
            self.patch(module, "Outage", partial(Outage, clock=lambda: self.ticks))
        self.patch(folder, "FRESH_S", 0.0)  # or others' writes go uncounted
        self.patch(store, "MOST_WAIT_S", 20.0)
        self.patch(writer, "PAUSE_S", 3600.0)  # writes wait for a flush, or for room
        self.patch(os, "fsync", os.fstat)
        writes = os.write
        self.patch(os, "write", lambda descriptor, data: writes(descriptor, data[:5000]))  # a disk may take a part of what it gets
        self.patch(folder.time, "time", lambda: self.now)
        self.patch(folder.time, "time_ns", lambda: int(self.now * 1e9))
        self.said = self.stack.enter_context(said())
        self.kept: list[Kept] = []
        """What every new owner finds, but for what a bound takes."""
        self.used: list[Kept] = []
        """The same, the one that was used last at the end."""
        self.had: dict[int, int] = {}
        """Tokens that a new owner found of each behind the last rule, by id."""
        self.pins: list[tuple[Kept, float]] = []
        """Those that stay until a time."""
        self.calm = True
        """Nothing else is there, and the clock never went back."""
        self.all_fit = True
        """Each of them can be kept whole by itself, and none was pinned."""
        self.tidy = True
        """No place was stopped while it wrote, and nothing is pinned: no tail stays beside a block that begins with it."""
        self.n_grown = 0
        self.store = self.opened(self.ram_blocks)

    def patch(self, where: object, name: str, value: object) -> AbstractContextManager:
        return self.stack.enter_context(patch.object(where, name, value))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.stack.close()

    def opened(self, ram_blocks: int = AMPLE, only: str | None = None, **more: Any) -> PrefixStore:
        """`only`: folder or server."""
        where: dict[str, Any] = {} if self.folder is None or only == "server" else {"folder": self.folder, "folder_bytes": self.folder_bytes}
        where |= {} if self.server is None or only == "folder" else {"url": self.server.url, "url_timeout_s": 20.0}
        who = structs.replace(more.pop("who", identity()), in_f16=True)
        settings = StoreSettings(ram_bytes=ram_blocks * BLOCK_BYTES, codec=CacheCodec.ROUND if self.rounds else CacheCodec.NONE, **where, **more)
        return PrefixStore(who, settings, answering=lambda: True)

    @contextmanager
    def owner(self, *arguments: Any, **more: Any) -> Iterator[PrefixStore]:
        """Another one, beside that which goes on."""
        other = self.opened(*arguments, **more)
        yield other
        assert other.in_flight.n_bytes == 0 and not other.ram.in_use, "something is held"
        other.close()

    def owner_or(self, goes_on: bool) -> AbstractContextManager[PrefixStore]:
        return nullcontext(self.store) if goes_on else self.owner()

    def tick(self, seconds: float = 1.0) -> None:
        self.now, self.ticks = self.now + seconds, self.ticks + abs(seconds)
        self.pins = [pin for pin in self.pins if pin[1] > self.now]

    def one(self, which: int) -> Kept:
        return self.kept[which % len(self.kept)]

    def grown(self, which: int, at: int, n: int, since: int = AMPLE, snapshots: tuple[int, ...] = ()) -> Kept:
        """A conversation that goes on, or that leaves another one. since: the first token that a sample reads, where it is new."""
        self.tick()
        self.n_grown += 1
        before = self.one(which) if self.kept else Kept(np.empty(0, np.int32), np.empty(0, np.uint8), ())
        tokens = conversation(n, self.n_grown, after=before.tokens[:at])
        first = len(tokens) - n
        readings = np.concatenate([before.readings[:first], np.where(np.arange(first, len(tokens)) < since, EXACT, SAMPLED)]).astype(np.uint8)
        return Kept(tokens, np.maximum.accumulate(readings), tuple(at for at in snapshots if at <= len(tokens)))

    def promise(self, one: Kept) -> None:
        self.kept.append(one)
        self.uses(one)
        self.holds()

    def uses(self, one: Kept) -> None:
        self.used = [other for other in self.used if other is not one] + [one]

    def expected(self, one: Kept, without: dict[int, int] | None = None, worst: Reading = SAMPLED) -> int:
        """Tokens of a conversation that are there. without: of some of `kept` (by id) only so many are."""
        return max([0, *(min(shared(one, other, worst), (without or {}).get(id(other), len(other.tokens))) for other in self.kept)])

    def furthest(self, one: Kept, but: int = -1) -> int:
        """Where a snapshot is, its own or another's behind tokens that both have. but: not there."""
        return max([0, *(at for other in self.kept for at in other.snapshots if but != at <= shared(one, other))])

    def temporaries(self) -> list[Path]:
        return [] if self.folder is None else list(self.folder.rglob(f"{TEMPORARY}*"))

    def holds(self) -> None:
        """The laws of what a new owner finds."""
        assert not self.temporaries(), "a file that is only begun stays"
        with self.store.ram.lock:
            blocks = self.store.ram
            assert self.store.stats().ram.n_bytes == sum(blocks.get(link.key).n_bytes for link in blocks.links()) <= self.store.most_ram_bytes
        with self.owner(0) as fresh:
            matches = {id(one): fresh.match_prefix(one.of(), SAMPLED) for one in self.kept}
            n_found = {of: match.n_tokens for of, match in matches.items()}
            on_chains = {step.link.key for match in matches.values() for step in match.steps}
            below = {child.link.key for place in fresh.places for children in place.children([identity().root_key(), *on_chains]) for child in children}
            assert not self.tidy or self.bounded or below == on_chains, "a tail stays beside the block that begins with it"
            nearest = "remote" if self.folder is None else "disk"
            for match in matches.values():
                hit = fresh.load(match)
                fresh.release(hit)
                assert {piece.source for piece in hit.pieces} <= {nearest}, "a far place is asked for what a near one has"
            for one, _ in self.pins:
                assert n_found[id(one)] == len(one.tokens) and snapshot(fresh, one) >= max(one.snapshots, default=0), "what is pinned goes"
                self.uses(one)
        lost = [i for i, one in enumerate(self.used) if n_found[id(one)] < self.had.get(id(one), 0)]
        self.had = n_found
        if not self.bounded:
            assert all(n_found[id(one)] == len(one.tokens) for one in self.kept)
        if self.folder is None:
            return
        files = list(scan(self.folder))
        assert sum(file.n_bytes for file in files) <= self.folder_bytes
        self.all_fit &= not read_pins(self.folder) and len(self.kept[-1].tokens) <= 1024
        if self.calm and self.all_fit:
            there = {identity().root_key(), *(file.link.key for file in files)}
            assert all(file.link.snapshot or file.link.parent in there for file in files), "an end outlives its beginning"
        if self.calm and self.bounded and self.all_fit:
            for i, one in enumerate(self.used[: max(lost, default=0)]):
                assert n_found[id(one)] <= max(shared(one, later) for later in self.used[i + 1 :]), "what was used later goes first"
