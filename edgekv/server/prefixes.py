"""Prefixes of conversations for the server in this process: connects its sequences with a `PrefixStore`."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from edgekv._native import http_server as native
from edgekv._native.prefix_callbacks import CachedTokens, Medium, SequenceTokens
from edgekv._native.token_rows import HeldTokens
from edgekv.common.enums import MissReason
from edgekv.common.errors import NativeError
from edgekv.config import KvOptions
from edgekv.models.geometry import Geometry
from edgekv.prefix_cache import conversations
from edgekv.prefix_cache.blocks import BLOCK_TOKENS, Conversation, KeptBlock, Reading
from edgekv.prefix_cache.coming import layer_groups
from edgekv.prefix_cache.identity import ModelIdentity
from edgekv.prefix_cache.kept_prompts import Kept
from edgekv.prefix_cache.place import unreadable
from edgekv.prefix_cache.ram import Ram
from edgekv.prefix_cache.results import BlockPiece, KeptSnapshot, Miss, PrefixHit, pieces_up_to
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.prefix_cache.store import PrefixStore, StoreStats
from edgekv.runtime import attachments
from edgekv.runtime.runtime import Runtime
from edgekv.server.fetching import POLL_S, Fetch
from edgekv.server.found import before_media, count, whole, worth
from edgekv.server.identities import Identities
from edgekv.server.loading import Loading, place
from edgekv.server.media import Media, whole_media
from edgekv.server.readings import KeptTokens, accepted, kept_tokens, read_with
from edgekv.server.saving import Answers, RowsInSlots
from edgekv.server.slot_tokens import SlotTokens

log = logging.getLogger("edgekv")

MOST_DAMAGED = 4
"""Most snapshots tried for a prompt; a damaged one is removed, and the previous one is tried."""

LEAST_SPACING = 512
"""Fewest tokens between two snapshots in the middle of a prompt."""
MOST_SHARE = 0.05
"""Most time of the copy, as a share of the time that reading these tokens takes."""
COPY_RATE = 1e9
"""Bytes that one thread copies per second, a low estimate."""


class Opened(NamedTuple):
    """A context whose rows are kept, and some of its tokens."""

    runtime: Runtime
    options: KvOptions
    """Those of one moment: they may change on another thread."""
    store: PrefixStore
    tokens: SequenceTokens
    """With numbers for media."""
    conversation: Conversation
    """The same tokens."""


class Prefixes:
    """The keeper that the server calls when a prompt begins and when tokens are computed (`edgekv._native.http_server.program`).

    K and V depend on the model's files and on the context as llama.cpp built it: contexts that agree in both share a store. They also depend
    on a request's adapters. These are part of its chains' root, like its namespace, so that a request can name any adapters without a store, a
    thread or a scan of its own. The constructor starts to compute the files' digest, while the model loads.
    """

    def __init__(self, model: Geometry, where: StoreSettings, shows_texts: bool = False):
        self.identities, self._media, self._where = Identities(model.path, not (model.mla or any(model.index_dims))), Media(), where
        self._model = model
        self._stores: dict[ModelIdentity, PrefixStore] = {}
        self.ram = Ram()
        self.conversation: str | None = None
        """The conversation that owns the blocks kept from now on, a name in small letters and digits; None: none."""
        self._claims = ThreadPoolExecutor(1, thread_name_prefix="edgekv-claim")
        self._answers, self._in_slots = Answers(), RowsInSlots()
        self._n_hits = self._n_prompts = 0
        self._loading: tuple[Conversation, Loading, tuple[Medium, ...]] | None = None
        self._fetches: dict[int, Fetch] = {}  # by sequence
        self.slot_tokens = SlotTokens(shows_texts)

    def open(self, runtime: Runtime, projector: str = "") -> None:
        """Open a context's store. projector: the file that makes embeddings of images and sound. Raises ConfigError for an invalid address."""
        self.identities.wait()
        if projector:
            self._media.expect(projector)
        if (built := self.identities.of(runtime)) is not None:
            self._store(built.identity)

    def match(self, prompt: SequenceTokens, n_have: int, goes_on: int | None, alone: bool) -> bool:
        """Whether `load` can go on at once. False while the kept rows that it will replace are copied out of the slot, and while rows come from a shared
        server. alone: no slot is being answered, so the call may wait a moment. goes_on: None, or the context keeps snapshots and the sequence can go on by
        itself behind so many tokens, n_have or 0."""
        opened = self._open(prompt)
        if opened is None:
            return True
        if not self._in_slots.ready(prompt.seq_id, n_have, POLL_S if alone else 0, opened.runtime.tokens):
            return False
        store, asked = opened.store, opened.conversation
        fetch, has_far = self._fetches.get(prompt.seq_id), store.has_far
        if fetch is None and not has_far:
            return True
        if fetch is None or not fetch.asked.same(asked):
            self._leave(prompt.seq_id)
            if not has_far or len(asked.tokens) <= n_have + 1:
                return True
            if self._loading is not None and self._loading[0].has_more_of(asked, n_have):
                return False  # the other prompt's blocks are in RAM once the batch is computed
            if (other := next((one for one in self._fetches.values() if one.asked.has_more_of(asked, n_have)), None)) is not None:
                other.ready(alone)  # it brings these blocks too; they are found once its prompt has begun
                return False
            asked, accepts = asked._replace(tokens=asked.tokens.copy()), accepted(opened.options, self._where.codec)
            fetch = self._fetches[prompt.seq_id] = Fetch(
                asked, store, lambda: store.load(store.match_prefix(asked, accepts, n_have, goes_on)), lambda hit: hit.worth(native.reading_s), alone)
        return fetch.ready(alone)

    def _leave(self, seq_id: int) -> None:
        if (fetch := self._fetches.pop(seq_id, None)) is not None:
            fetch.leave()

    def _look_up(self, accepts: Reading, store: PrefixStore, seq_id: int, wanted: Conversation, n_have: int, goes_on: int | None) -> PrefixHit:
        """The fetched rows, or this machine's rows, which may be more by now."""
        fetch = self._fetches.pop(seq_id, None)
        near = store.load(store.match_prefix(wanted, accepts, n_have, goes_on, near=True))
        if fetch is None:
            return near
        fetched = fetch.take().behind(n_have) if fetch.asked.same(wanted) else PrefixHit()
        if fetched.reaches <= near.reaches:
            fetch.leave()
            cold = near.missed is not None and near.missed.reason is MissReason.COLD
            return replace(near, missed=fetched.missed) if cold and fetched.missed is not None else near
        store.release(near)
        return fetched

    def load(self, prompt: SequenceTokens, n_have: int, goes_on: int | None) -> CachedTokens:
        """Put the blocks after a prompt's first n_have tokens into its sequence; in a context with snapshots, the blocks up to one."""
        self.slot_tokens.note(prompt)
        opened, n_asked = self._open(prompt), len(prompt.tokens)
        if opened is None:
            return CachedTokens(missed=Miss(MissReason.NOT_ATTACHED if attachments.find(prompt.address) is None else MissReason.MODEL_UNKNOWN, n_have))
        self._n_prompts += 1
        if goes_on is None and n_asked <= n_have + 1:  # the last token is computed in any case
            self._leave(prompt.seq_id)
            return CachedTokens()
        runtime, options, store, prompt, wanted = opened
        accepts = accepted(options, self._where.codec)
        if goes_on is None:
            cached = self._load_rows(runtime, store, prompt, wanted, accepts, n_have)
        else:
            cached = self._load_snapshot(runtime, store, prompt, wanted, accepts, n_have, goes_on)
            cached.spacing = snapshot_spacing(self._model, runtime)
        self._n_hits += cached.slot != goes_on or cached.n_kept > 0
        if cached.missed is None and len(wanted.tokens) < n_asked:
            cached.missed = Miss(MissReason.MODEL_UNKNOWN, len(wanted.tokens))
        return cached

    def _load_rows(self, runtime: Runtime, store: PrefixStore, prompt: SequenceTokens, wanted: Conversation, accepts: Reading, n_have: int) -> CachedTokens:
        """Go on behind the sequence's first n_have tokens, in a context that keeps only rows."""
        hit = before_media(worth(self._look_up(accepts, store, prompt.seq_id, wanted, n_have, None)), prompt.media)
        loading, missed = self._placed(runtime, store, prompt, hit), hit.missed
        pieces = loading.pieces
        if sum(piece.n for piece in pieces) < hit.n_tokens:
            missed = Miss(MissReason.NO_CELLS, pieces[-1].first + pieces[-1].n if pieces else n_have)
        comes = loading.brings and runtime.tokens.arrivals.can_wait
        if comes:
            self._loading = wanted._replace(tokens=wanted.tokens.copy()), loading, prompt.media
        elif (n_good := loading.finish()) < len(pieces):
            pieces, missed = whole(pieces[:n_good], prompt.media), Miss(unreadable(store.places), pieces[n_good].first)
        return count(pieces, missed=missed, comes=comes)

    def _load_snapshot(self, runtime: Runtime, store: PrefixStore, prompt: SequenceTokens, wanted: Conversation, accepts: Reading, n_have: int,
                       goes_on: int) -> CachedTokens:
        """Go on at the furthest usable snapshot, or where the sequence can continue without one."""
        lost: Miss | None = None
        for _ in range(MOST_DAMAGED):
            hit = worth(self._look_up(accepts, store, prompt.seq_id, wanted, n_have, goes_on))
            kept = hit.snapshot
            if kept is None:
                store.release(hit, 0)
                return count((), missed=lost or hit.missed, slot=goes_on)
            try:
                if (state := self._state(store, hit, kept)) is not None and self._placed(runtime, store, prompt, hit).finish() == len(hit.pieces):
                    runtime.tokens.put_snapshot(prompt.seq_id, kept.position if prompt.at is None else int(prompt.at[0, kept.position]), state)
                    return count(hit.pieces, missed=lost or hit.missed, slot=min(n_have, kept.position))
            except NativeError as error:  # the sequence is empty
                log.warning("a kept snapshot cannot be used (%s); the prompt is read", error)
                return CachedTokens(0, missed=Miss(MissReason.DAMAGED, 0))
            lost = Miss(unreadable(store.places), hit.reaches)
        return CachedTokens(goes_on, missed=lost)

    @staticmethod
    def _state(store: PrefixStore, hit: PrefixHit, kept: KeptSnapshot) -> np.ndarray | None:
        """The bytes of a hit's snapshot. Where there are none the hit is released."""
        state = None
        try:
            state = kept.read()
        finally:
            if state is None:
                store.release(hit)
        return state

    def _placed(self, runtime: Runtime, store: PrefixStore, prompt: SequenceTokens, hit: PrefixHit) -> Loading:
        """The load of a hit's rows, as many as there are free cells for, which releases the hit at its end. With a snapshot, all or none count."""
        def came(n: int) -> None:
            store.release(hit, None if hit.snapshot and n < len(hit.pieces) else n)

        try:
            cells = place(runtime.tokens, prompt, hit.pieces)
            pieces = whole(hit.pieces[:len(cells)], prompt.media)
            left = self._unpark(runtime, prompt.seq_id, pieces, [of[: piece.n] for piece, of in zip(pieces, cells)])
        except BaseException:
            store.release(hit, None if hit.snapshot else 0)
            raise
        return Loading(runtime.tokens, prompt.seq_id, pieces, left, layer_groups(store.identity.layout, BLOCK_TOKENS), came, prompt.at)

    def _unpark(self, runtime: Runtime, seq_id: int, pieces: Sequence[BlockPiece], cells: list[np.ndarray]) -> list[np.ndarray]:
        """Bring what is parked back with its memory: from now on these blocks lie in the slot. The cells of each piece whose rows are still to come."""
        uncut = [(i, piece.block) for i, piece in enumerate(pieces) if isinstance(piece.block, KeptBlock) and piece.n == piece.n_block]
        back = self.ram.put_back([block for _, block in uncut], [cells[i] for i, _ in uncut], partial(runtime.tokens.unpark, seq_id))
        for (i, block), is_back in zip(uncut, back):
            if is_back and isinstance(block.rows, HeldTokens):
                self._in_slots.add(pieces[i].first + pieces[i].n, block.rows)
                cells[i] = cells[i][:0]
        return cells

    def start(self) -> None:
        """Right before a decode, which computes while the promised rows come. If this raises, the server calls `release` before it decodes."""
        if self._loading is not None:
            self._loading[1].start()

    def release(self, seq_id: int) -> tuple[int, CachedTokens]:
        """Give up a match, or wait for promised rows. Returns the number of tokens before the first one whose rows failed (-1: none failed), never within
        a medium, and the number of these that were put in."""
        self._leave(seq_id)
        if self._loading is None or self._loading[1].seq_id != seq_id:
            return -1, CachedTokens()
        (_, loading, media), self._loading = self._loading, None
        n_good = loading.finish()
        if n_good == len(loading.pieces):
            return -1, count(loading.pieces)
        first = whole_media(media, loading.pieces[n_good].first)
        return first, count(pieces_up_to(loading.pieces[:n_good], first))

    def evict(self, n_bytes: int) -> bool:
        """Evict n_bytes or more from RAM; whether any went."""
        return bool(self._stores) and next(iter(self._stores.values())).evict_bytes(n_bytes)

    def insert(self, held: SequenceTokens, rows: bool, snapshot: bool) -> None:
        """Keep a sequence's computed tokens up to the first gap, and a snapshot behind them, which are all that it holds. Rows stay in its cells; on a
        device they are copied."""
        if rows:
            self.slot_tokens.note(held)
        opened, n_held = self._open(held), len(held.tokens)  # before the labels: settings that change later must not pass for these
        if opened is None:
            return
        runtime, options, store, held, of = opened
        kept = kept_tokens(runtime, options, held)
        of = of._replace(tokens=held.tokens[:len(kept.cells)].copy())
        if rows:
            self._insert_rows(runtime, store, held.seq_id, of, kept)
        if snapshot and len(kept.cells) == n_held and not store.has_snapshot(of, kept.readings):
            store.insert_snapshot(of, kept.readings, runtime.tokens.snapshot(held.seq_id))

    def _insert_rows(self, runtime: Runtime, store: PrefixStore, seq_id: int, of: Conversation, kept: KeptTokens) -> None:
        def rows(first: int, n: int) -> np.ndarray | HeldTokens:
            cells = kept.cells[first:first + n]
            try:
                held = runtime.tokens.hold(seq_id, cells, self._where.ram_bytes > 0)
            except NativeError:  # they are not in host memory
                return runtime.tokens.read(seq_id, cells, store.identity.layout.block_bytes(n))
            self._in_slots.add(first + n, held)
            return held

        saved = store.insert(of, kept.readings, rows, kept.rounded)
        if self.conversation is not None and self._where.folder is not None:
            self._claims.submit(_claim, self._where.folder, self.conversation, [link.key for link in saved.chain])

    def forget(self, conversation: str) -> int:
        """Remove blocks that only this conversation uses from RAM and the folder; returns the bytes removed from the folder. Any thread except the
        decoding one may call it. Raises EdgeKVError if the folder is not writable."""
        folder = self._where.folder
        if folder is None:
            return 0

        def forget() -> int:
            doomed = conversations.blocks_alone(folder, conversation)
            for store in list(self._stores.values()):
                store.evict(doomed)
            return conversations.forget(folder, conversation)

        return self._claims.submit(forget).result()  # after the conversation's newest blocks are noted

    def kept(self, space: str) -> list[Kept]:
        """What each store keeps of a namespace, but not what was computed with adapters. Any thread may call it."""
        return [Kept(store, store.identity.chain_root("", space)) for store in list(self._stores.values())]

    def flush(self) -> None:
        """Wait until everything is written to the places below RAM."""
        for store in self._stores.values():
            store.flush()

    def close(self) -> None:
        fetches, self._fetches = list(self._fetches.values()), {}
        for fetch in fetches:
            fetch.leave()
        self._claims.shutdown()
        for store in self._stores.values():
            store.close()
        self._in_slots.close()
        for fetch in fetches:
            fetch.join()
        self._stores.clear()

    def stats(self) -> list[StoreStats]:
        """The statistics of each open store."""
        return [store.stats() for store in self._stores.values()]

    def figures(self) -> dict[str, int]:
        """The endpoint's figures, over all stores, each of which counts the whole RAM and the whole folder."""
        all_stats = self.stats()

        def most(read: Callable[[StoreStats], int]) -> int:
            return max(map(read, all_stats), default=0)

        def total(read: Callable[[StoreStats], int]) -> int:
            return sum(map(read, all_stats))

        return {
            "ram_bytes": most(lambda of: of.ram.n_bytes), "ram_limit_bytes": self._where.ram_bytes,
            "disk_bytes": most(lambda of: of.disk.n_bytes), "disk_limit_bytes": self._where.folder_bytes if self._where.folder else 0,
            "n_blocks": most(lambda of: of.ram.n_blocks) + total(lambda of: of.disk.n_blocks),
            "n_hits": self._n_hits, "n_misses": self._n_prompts - self._n_hits,  # prompts that began with tokens of a store, and others
            "n_tokens_loaded": total(lambda of: of.ram.hit_tokens + of.disk.hit_tokens + of.remote.hit_tokens),
            "n_waiting_writes": total(lambda of: of.n_unwritten), "n_dropped": total(lambda of: of.n_dropped),
            "ram_evicted": total(lambda of: of.ram.n_evicted), "disk_evicted": total(lambda of: of.disk.n_evicted),
            "disk_refused": total(lambda of: of.disk.n_refused), "remote_refused": total(lambda of: of.remote.n_refused),
            "disk_outages": total(lambda of: of.disk.n_errors), "remote_outages": total(lambda of: of.remote.n_errors),
            "n_blocks_in_slots": most(lambda of: of.n_in_slots)}  # those on disk count there too

    def _open(self, of: SequenceTokens) -> Opened | None:
        """None: nothing keeps the context's rows."""
        runtime = attachments.find(of.address)
        built = None if runtime is None else self.identities.of(runtime)
        if runtime is None or built is None:
            return None
        of, root = self._media.numbered(of), built.identity.chain_root(built.named(of.adapters), of.space)
        stays = tuple((n, time.time() + ttl_s) for n, ttl_s in of.marks)
        options = runtime.options
        conversation = Conversation(of.tokens, root, read_with(options, self._where.codec), of.in_memory, stays)
        return Opened(runtime, options, self._store(built.identity), of, conversation)

    def _store(self, identity: ModelIdentity) -> PrefixStore:
        if identity not in self._stores:
            self._stores[identity] = PrefixStore(identity, self._where, ram=self.ram, answering=self._answers.run)
        return self._stores[identity]


def _claim(folder: Path, conversation: str, keys: list[bytes]) -> None:
    try:
        conversations.add_blocks(folder, conversation, keys)
    except OSError as error:  # then the folder has no blocks of the conversation either
        log.warning("the kept blocks of a conversation are not noted in %s: %s", folder, error.strerror)


def snapshot_spacing(model: Geometry, runtime: Runtime) -> int:
    """Tokens between two snapshots in the middle of a long prompt. Their rows take at least a snapshot's bytes, so that the store at most
    doubles, and reading them takes 20 times as long as the snapshot's copy."""
    types = runtime.options.cache.kinds
    n_bytes = model.snapshot_bytes(*types)
    row_bytes = model.row_bytes(*types)
    by_bytes = n_bytes / row_bytes if row_bytes else 0.0  # without rows every layer slides or keeps a state
    reading_s = native.reading_s(0, LEAST_SPACING) / LEAST_SPACING  # 0: no prompt was read yet
    by_time = n_bytes / COPY_RATE / MOST_SHARE / reading_s if reading_s > 0 else 0.0
    wanted = max(LEAST_SPACING, by_bytes, by_time)
    return -(-int(wanted) // BLOCK_TOKENS) * BLOCK_TOKENS
