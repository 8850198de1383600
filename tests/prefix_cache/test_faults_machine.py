"""Everything that may happen to a folder and a shared server of prefixes, in any order: each rule is a whole event, from its fault to what holds behind
it (tests/support/owners.py)."""

import errno
import os
import shutil
from contextlib import nullcontext, suppress
from itertools import takewhile
from unittest.mock import Mock, patch

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import initialize, precondition, rule
from support.faulty import DAMAGES, DENIED, OBSTACLES, WRITES, failing, flip, killed_at, theirs
from support.owners import AMPLE, EXACT, ONE, OTHER, SAMPLED, UNROUNDED, Kept, Owners, found, save, snapshot, whole
from support.prefix_rows import LAYOUT, InSlot, check_rows, identity, reader
from support.redis_server import RedisServer
from support.stores import restore

from edgekv.prefix_cache.blocks import Block, Link
from edgekv.prefix_cache.files import path_of, read_header, scan
from edgekv.prefix_cache.format import encode
from edgekv.prefix_cache.identity import begins_chain
from edgekv.prefix_cache.listing import fault_of, list_chains
from edgekv.prefix_cache.named import Pin, read_pins, write_pin
from edgekv.prefix_cache.store import PrefixStore

WHICH = st.sampled_from([-1, -1, -2, 0, 1])
LENGTH = st.sampled_from([1, 100, 256, 257, 300, 512, 600, 700])
SINCE = st.sampled_from([AMPLE, AMPLE, 0, 300])
SNAPSHOTS = st.sampled_from([(), (), (1,), (255, 600), (256,), (290, 699)])
UNBOUNDED = precondition(lambda self: self.folder and not self.bounded)
ROOT = identity().root_key()

OF_ONE = st.sampled_from([*DAMAGES, "another's", "a terabyte", *OBSTACLES, *DENIED])
BROKEN = st.sampled_from([(errno.ENOSPC, "full"), (errno.EROFS, "read-only"), (errno.EACCES, "permission"), (errno.EIO, "error")])

with suppress(ImportError):
    import redis


@pytest.fixture(scope="module", autouse=True)
def _shared(running: RedisServer | None) -> None:
    Owners.redis = running


class Machine(Owners):
    @initialize(where=st.sampled_from(["folder", "bounded folder", "server", "both"]), ram_blocks=st.sampled_from([0, 4, AMPLE, AMPLE]),
                rounds=st.sampled_from([False, False, True]), n=LENGTH, snapshots=SNAPSHOTS)
    def start(self, where, ram_blocks, rounds, n, snapshots):
        self.begin(where, ram_blocks, rounds)
        self.talk(0, 0, n, AMPLE, snapshots, True)

    # ---- what owners do --------------------------------------------------------------------------------------------------------------

    @rule(which=WHICH, at=LENGTH, n=LENGTH, since=SINCE, snapshots=SNAPSHOTS, goes_on=st.booleans())
    def talk(self, which, at, n, since, snapshots, goes_on):
        """The owner that goes on reads it, or another one."""
        one = self.grown(which, at, n, since, snapshots)
        with self.owner_or(goes_on) as where:
            assert save(where, one).n_left_out == 0
        self.promise(one)
        assert not self.bounded or read_pins(self.folder) or self.had[id(one)] >= min(512, len(one.tokens)), "the newest has no room"

    @rule(which=WHICH, n_have=st.sampled_from([0, 0, 100, 256]), goes_on=st.booleans())
    def ask(self, which, n_have, goes_on):
        """What is there comes, with its rows, and from RAM the next time; not for another model, namespace or setting."""
        self.tick()
        one = self.one(which)
        with self.owner_or(goes_on) as where:
            n = whole(where, one)
            assert found(where, one, n_have) == max(0, n - n_have)
            assert n < len(one.tokens) or self.bounded or snapshot(where, one) >= self.furthest(one)
            if where.settings.ram_bytes > 1 << 20 and not n_have:
                assert {piece.source for piece in restore(where, one.tokens[:n], 0, SAMPLED, read_with=ONE).pieces} <= {"ram"}
            if not self.bounded and not self.rounds:  # what others lent would count as used
                n_exact = found(where, one, accepts=EXACT)
                assert n_exact == found(where, one, read_with=OTHER) and n_exact >= self.expected(one, worst=EXACT)
            assert found(where, one, root=where.identity.chain_root("a key")) == 0
            assert goes_on or not self.rounds or found(where, one, read_with=UNROUNDED) == 0, "rounded rows for who takes none"
            assert where.flush(20)
        with self.owner(who=identity("another")) as other:
            assert whole(other, one) == 0
        self.uses(one)
        self.holds()

    @precondition(lambda self: self.folder)
    @rule(which=WHICH, at=LENGTH, n=LENGTH, snapshots=SNAPSHOTS, seconds=st.sampled_from([5, 50]), by_name=st.booleans())
    def pin(self, which, at, n, snapshots, seconds, by_name):
        one = self.grown(which, at, n, snapshots=snapshots)
        self.tidy, until = False, self.now + seconds  # a pinned tail stays
        saved = save(self.store, one, stays=() if by_name else ((len(one.tokens), until),))
        if by_name:
            write_pin(self.folder, Pin(f"mine{self.n_grown}", ROOT, saved.chain[-1].key, until))
        with self.owner(0, "folder") as fresh:
            there = whole(fresh, one) == len(one.tokens) and snapshot(fresh, one) >= max(one.snapshots, default=0)
        self.pins += [(one, until)] * there
        self.promise(one)

    @rule(seconds=st.sampled_from([10, 10, 60, 60, -3600]))
    def wait(self, seconds):
        """The time of pins ends; or somebody sets the clock back."""
        self.calm &= seconds > 0
        self.tick(seconds)
        assert self.folder is None or all(pin.expires > self.now for pin in read_pins(self.folder))
        self.holds()

    @precondition(lambda self: not self.bounded and self.ram_blocks != 4)
    @rule(which=WHICH, at=LENGTH, n=LENGTH, snapshots=SNAPSHOTS)
    def stays_in_memory(self, which, at, n, snapshots):
        """No place gets it, before somebody else reads the same."""
        one, before = self.grown(which, at, n, snapshots=snapshots), self.below()
        saved = save(self.store, one, in_memory=True, stays=((len(one.tokens), self.now + 9),))
        assert self.below() == before and (self.ram_blocks or saved.n_left_out == len(one.tokens))
        assert self.ram_blocks != AMPLE or found(self.store, one) == len(one.tokens)
        assert self.store.flush(20) and self.below() == before
        save(self.store, one)
        self.promise(one)
        with self.owner() as fresh:
            assert snapshot(fresh, one) >= self.furthest(one)

    def below(self) -> set:
        of_server = set() if self.server is None else set(self.server.client.keys())
        return of_server if self.folder is None else of_server | {file.path for file in scan(self.folder)}

    @rule()
    def begin_again(self):
        self.store.close()
        self.store = self.opened(self.ram_blocks)
        self.holds()

    @rule(which=WHICH, at=LENGTH, n=LENGTH, written=st.booleans(), fails=st.booleans(), room=st.sampled_from([0, 1, 2, AMPLE]))
    def slot_is_needed(self, which, at, n, written, fails, room):
        """Rows stay in their slot until it needs the cells, and take no RAM. Hits get them, places too, and a copy that fails holds nothing."""
        one, held, room = self.grown(which, at, n), list[InSlot](), AMPLE if self.bounded else room
        read = reader(one.tokens, one.readings)

        def rows(first: int, n: int) -> InSlot:
            held.append(InSlot(read(first, n), n))
            return held[-1]

        with self.owner(room) as where:
            where.insert(one.of(), one.readings, rows, np.zeros(len(one.tokens), bool))
            assert where.stats().ram.n_bytes == 0 and held
            assert not written or where.flush(20)
            hit = restore(where, one.tokens, 0, SAMPLED, in_part=True, read_with=ONE)
            if fails:
                held[-1].read = Mock(side_effect=MemoryError)
            for slot in held:
                with suppress(MemoryError):
                    slot.needed()
                assert not slot.held or written and not room, "the slot waits for ever"  # without RAM nobody refers to what is written
            if not fails:
                assert check_rows(hit, one.tokens, 0, SAMPLED) == len(one.tokens)
            where.release(hit, 0 if fails else len(hit.pieces))
            assert where.flush(20) and where.stats().ram.n_bytes <= where.most_ram_bytes
            if fails and not written:
                assert whole(where, one) < len(one.tokens)
            save(where, one)
        self.promise(one)

    # ---- what happens to a folder ----------------------------------------------------------------------------------------------------

    @UNBOUNDED
    @rule(which=st.integers(0, 99), hows=st.lists(OF_ONE, min_size=4, max_size=4, unique=True))
    def files_are(self, which, hows):
        for i, how in enumerate(hows):
            self.one_file_is(which + i, how)

    def one_file_is(self, which: int, how: str) -> None:
        """It is left out alone: what goes on from it is not found, everything else is. The log says it once."""
        self.tick()
        with self.owner(0, "folder") as where:
            chains = {id(one): restore(where, one.tokens, 0, SAMPLED, read_with=ONE).chain for one in self.kept}
        needed = {link.key for chain in chains.values() for link in chain}  # tails may stay where a longer block found no place
        files = [file for file in sorted(scan(self.folder), key=lambda file: file.path) if file.link.snapshot or file.link.key in needed]
        file, other = files[which % len(files)], files[(which + 1) % len(files)]
        path, data = file.path, file.path.read_bytes()
        if how == "another's" and file is other:
            return
        ends = {key: before(chain, file.link.key) for key, chain in chains.items()}
        at = {key: behind(chain, file.link.parent) + file.link.n for key, chain in chains.items()}
        self.said.clear()
        if how in DAMAGES:
            path.write_bytes(DAMAGES[how](data))
        elif how == "another's":
            path.write_bytes(other.path.read_bytes())
        elif how == "a terabyte":
            os.truncate(path, 1 << 40)
        elif how in OBSTACLES:
            path.unlink()
            OBSTACLES[how](path)
        removed = how not in (*OBSTACLES, *DENIED, "another program's", "another version's")
        self.tidy &= removed
        with theirs({path}, DENIED[how]) if how in DENIED else nullcontext(), self.owner(AMPLE, "folder") as where:
            refused = [file.path for file in scan(self.folder) if fault_of(file)]
            assert refused == [path] and list_chains(self.folder)
            if file.link.snapshot:
                assert all(snapshot(where, one) >= self.furthest(one, but=at[id(one)]) for one in self.kept)
            self.find_but(where, ends)
            assert len(self.said) == 1 or not self.said and (file.link.snapshot or not self.calm)
            if self.said:
                assert path.name in self.said[0] and ("removed" if removed else "left alone") in self.said[0] and path.exists() != removed
                assert where.stats().disk.n_refused == 1 and where.stats().disk.n_errors == 0
            assert where.places[0].working
            for one in self.kept:
                save(where, one)
            assert where.places[0].writable and where.stats().n_unwritten == 0
        assert path.exists() and (how != "a folder" or (path / "mine").exists()) and (how not in DENIED or path.read_bytes() == data)
        if how == "a folder" or file.link.snapshot:  # which nobody may have read
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            path.write_bytes(data)
        self.holds()
        assert not self.calm or not any(map(fault_of, scan(self.folder)))

    def find_but(self, where: PrefixStore, ends: dict[int, int]) -> None:
        """Of some conversations only so many tokens are there. The first time one may end there; then another one's beginning is found."""
        for one in self.kept:
            assert found(where, one) >= min(self.expected(one, ends), ends[id(one)])
        for one in self.kept:
            n, wanted = found(where, one), self.expected(one, ends)
            assert n == wanted or n > wanted and not (self.calm and self.tidy)

    @UNBOUNDED
    @rule(which=WHICH, part=st.integers(0, 3), layer=st.integers(0, 1), how=st.sampled_from(["it vanishes", "a bit", "the same again", "others again"]))
    def file_changes_meanwhile(self, which, part, layer, how):
        """Between two layers of a load."""
        one = self.one(which)
        self.tick()
        with self.owner(AMPLE, "folder") as where:
            hit = restore(where, one.tokens, 0, SAMPLED, in_part=True, read_with=ONE)
            assert all(piece.coming and piece.read(range(1 - layer, 2 - layer)) is not None for piece in hit.pieces)
            part %= len(hit.pieces)
            block = hit.pieces[part].block
            path = path_of(self.folder, ROOT, block.link)
            data = path.read_bytes()
            self.said.clear()
            if how == "a bit":
                path.write_bytes(flip(read_header(path).start + int(LAYOUT.layer_starts(block.link.n)[layer]) + 5)(data))
            elif how != "it vanishes":
                rows = np.frombuffer(data[read_header(path).start :], np.uint8) ^ np.uint8(how == "others again")
                path.unlink()
                path.write_bytes(b"".join(encode(Block(block.link, block.tokens, rows), where.identity, self.rounds)))
            else:
                path.unlink()
            good = [piece.read(range(layer, layer + 1)) is not None for piece in hit.pieces]
            assert good == [i != part or how == "the same again" for i in range(len(good))]
            n_good = len(good) if all(good) else part
            assert check_rows(hit.first_pieces(n_good), one.tokens, 0, SAMPLED) == sum(piece.n for piece in hit.pieces[:n_good])
            where.release(hit, n_good)
            assert where.stats().ram.n_blocks == n_good and where.stats().disk.hit_tokens == sum(piece.n for piece in hit.pieces[:n_good])
            assert where.stats().disk.n_refused == len(self.said) == (how == "a bit") and where.places[0].working
            assert not self.said or f"the rows of layer {layer} are damaged" in self.said[0]
            assert path.exists() == (how in ("the same again", "others again"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.holds()

    @UNBOUNDED
    @rule(which=WHICH, at=LENGTH, n=LENGTH, how=BROKEN, ends=st.booleans(),
          calls=st.sampled_from([("write",), ("open",), ("fsync",), ("replace",), WRITES]))
    def disk_fails(self, which, at, n, how, ends, calls):
        """Nothing is lost as far as RAM has room, and what is there is read. It is said once, and once when it works again; or what is lost at the end."""
        one, old = self.grown(which, at, n), self.one(which)
        self.said.clear()
        self.tidy = False
        with failing(calls, how[0]):
            chain = save(self.store, one).chain
            assert len(self.said) == 1 and how[1] in self.said[0].lower() and (calls == WRITES or not self.temporaries())
            if self.ram_blocks == AMPLE:
                assert found(self.store, one) == len(one.tokens) and self.store.flush(20)
                assert self.store.stats().n_unwritten == (lacks := sum(not path_of(self.folder, ROOT, link.copy(self.rounds)).exists() for link in chain))
            with self.owner(0, "folder") as fresh:
                assert found(fresh, old) == len(old.tokens)
            with theirs({file.path for file in scan(self.folder)}, errno.EIO), self.owner(0, "folder") as fresh:
                assert found(fresh, old) == 0 and not fresh.places[0].working and len(self.said) == 2 and "stay in RAM" in self.said.pop()
            if ends:
                self.store.close()
                assert self.ram_blocks != AMPLE or f"{lacks} block" in self.said[1] and "not written to disk" in self.said[1]
                self.store = self.opened(self.ram_blocks)
        self.tick(40)
        assert self.store.flush(20)
        assert ends or self.ram_blocks != AMPLE or len(self.said) == 2 and "works again" in self.said[1]
        save(self.store, one)
        self.promise(one)

    @precondition(lambda self: self.folder)
    @rule(which=WHICH, at=LENGTH, n=LENGTH, snapshots=SNAPSHOTS, steps=st.lists(st.integers(1, 24), min_size=3, max_size=3))
    def process_is_killed(self, which, at, n, snapshots, steps):
        """At any step of its writing. What was there is there, and every file is whole."""
        for step in steps:
            self.dies(self.grown(which, at, n, snapshots=snapshots), step)

    def dies(self, one: Kept, step: int) -> None:
        self.tidy, self.calm = False, self.calm and not self.bounded  # a use that was not noted any more
        with killed_at(step):
            save(self.store, one)
            self.store.close(0)
        self.store = self.opened(self.ram_blocks)
        assert not any(map(fault_of, scan(self.folder)))
        assert self.bounded or self.holds() is None
        save(self.store, one)
        self.promise(one)

    @precondition(lambda self: self.folder and not self.bounded and self.ram_blocks == AMPLE)
    @rule(which=WHICH, at=LENGTH, n=LENGTH, method=st.sampled_from(["write", "touch"]),
          error=st.sampled_from([RuntimeError("boom"), MemoryError(), RecursionError(), SystemExit(3)]))
    def place_raises(self, which, at, n, method, error):
        """Its writer goes on, and says the first time what it was. The next use writes what is lacking."""
        one = self.grown(which, at, n)
        self.said.clear()
        with patch.object(self.store.places[0], method, side_effect=error):
            save(self.store, one)
            assert len(self.said) <= 1 and all(type(error).__name__ in message for message in self.said)
        assert found(self.store, one) == len(one.tokens) and self.store.flush(20)
        self.promise(one)

    # ---- what happens to a server ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.server)
    @rule(which=WHICH, at=LENGTH, n=LENGTH, how=st.sampled_from(["gone", "slow", "full"]))
    def server_fails(self, which, at, n, how):
        """A miss, said once and asked once; a full one is read."""
        one, old, full = self.grown(which, at, n), self.one(which), how == "full"
        with self.owner(0, "server") as fresh:
            n_old = whole(fresh, old)  # after a kill a folder may have more
        error = {"gone": redis.ConnectionError("Connection refused"), "slow": redis.TimeoutError("Timeout reading from socket"), "full": None}[how]
        self.server.client.config_set("maxmemory", int(full))
        with nullcontext() if full else patch.object(redis.connection.AbstractConnection, "send_packed_command", side_effect=error) as sent:
            self.said.clear()
            with self.owner(AMPLE, "server") as fresh:
                assert found(fresh, old) == n_old * full and fresh.places[0].working == full and len(self.said) == 1 - full
                n_sent = full or sent.call_count
                assert found(fresh, one) <= len(old.tokens) * full and n_sent == (full or sent.call_count)
            self.said.clear()
            save(self.store, one)
            assert len(self.said) == 1 and "stay in RAM" in self.said[0] and not self.store.places[-1].writable
            assert self.ram_blocks != AMPLE or found(self.store, one) == len(one.tokens)
        self.server.client.config_set("maxmemory", 0)
        self.tick(6)
        assert self.store.flush(20)
        assert self.ram_blocks != AMPLE or len(self.said) == 2 and "works again" in self.said[1]
        save(self.store, one)
        self.promise(one)

    @precondition(lambda self: self.server and not self.folder)  # a server beside a folder may lack what only the folder has
    @rule(which=st.integers(0, 99), damaged=st.booleans())
    def one_block_is(self, which, damaged):
        """Damaged or forgotten: what goes on from it is not found, and it is sent again."""
        client = self.server.client
        names = sorted(name for name in client.keys("edgekv:*") if client.type(name) == b"string")
        name = names[which % len(names)]
        self.tick()
        with self.owner(0, "server") as where:
            chains = {id(one): restore(where, one.tokens, 0, SAMPLED, read_with=ONE).chain for one in self.kept}
        key = bytes.fromhex(name.decode().split(":")[2])
        ends = {of: before(chain, key) for of, chain in chains.items()}
        data = client.getdel(name)
        if damaged:
            client.set(name, flip(-5)(data))
        self.said.clear()
        with self.owner(AMPLE, "server") as where:
            self.find_but(where, ends)
            assert all(snapshot(where, one) <= len(one.tokens) for one in self.kept)
            assert len(self.said) == where.stats().remote.n_refused <= damaged
            assert not self.said or not client.exists(name)
            for one in self.kept:  # who has it in RAM sends it again too
                save(self.store, one)
        if all(link.key != key for chain in chains.values() for link in chain):  # a snapshot
            client.set(name, data)
        assert client.get(name) in (None, data)  # not sent where a longer block begins with it
        self.holds()


def before(chain: tuple[Link, ...], key: bytes) -> int:
    """Tokens of a chain before a block; all where it is not there."""
    return sum(link.n for link in takewhile(lambda link: link.key != key, chain))


def behind(chain: tuple[Link, ...], key: bytes) -> int:
    """Tokens of a chain up to a block and with it; 0 where that is the root."""
    return 0 if begins_chain(ROOT, key) else before(chain, key) + next((link.n for link in chain if link.key == key), AMPLE)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=16, deadline=None, derandomize=True)
