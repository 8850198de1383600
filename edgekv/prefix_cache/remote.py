"""A place below RAM that several machines share: a Redis-compatible server.

    edgekv:ROOT:KEY              a block or snapshot: the same bytes as a file's
    edgekv:ROOT:KEY:rounded      the same block, rounded
    edgekv:ROOT:PARENT:children  a hash: what follows a block; KEY and READING (17 bytes) -> tokens (int32, little endian)
    edgekv:ROOT:PARENT:snapshots a hash of the same form: the snapshots that hang on a block

All names are in hexadecimal, ROOT is the model identity's. Everything has a time to live, renewed when it is used.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from time import monotonic
from typing import Any, TypeVar

import numpy as np

from edgekv.common.enums import CacheCodec
from edgekv.common.errors import ConfigError
from edgekv.prefix_cache.blocks import BLOCK_TOKENS, KEY_BYTES, Block, Link, Reading, child_link, snapshot_link
from edgekv.prefix_cache.coming import ComingBlock
from edgekv.prefix_cache.format import MOST_READ_WITH_BYTES, BlockHeader, Refused, decode_header, encode, header_bytes, read_layers
from edgekv.prefix_cache.identity import ModelIdentity
from edgekv.prefix_cache.place import Child, Outage, Outcome, Place, covered_tails, log
from edgekv.prefix_cache.place_rates import Rate, rounds
from edgekv.prefix_cache.remote_rows import read_range
from edgekv.prefix_cache.results import PlaceStats

BACK_OFF_S = 5.0
"""Seconds until a failed server is asked again."""

MOST_BLOCK_BYTES = 256 << 20
"""Larger blocks are not sent. The server bounds the sum itself (maxmemory, with a policy such as allkeys-lru)."""

LEAST_RATE = 20e6
"""Bytes a second: rows may take a call's bound, and their bytes at this rate besides. Slower rows are a miss."""

FIRST_READ = 8192
"""Of a block: most headers are shorter."""

MOST_CHILDREN = 1024
"""Children of a block, until the forgotten ones are taken out."""

CHILDREN, SNAPSHOTS, ROUNDED = ":children", ":snapshots", ":rounded"
"""Ends of the names of what hangs on a block, and of its rounded copy."""

T = TypeVar("T")


class RedisPlace(Place):
    """One model identity's part of a server. No call keeps its caller waiting for more than `timeout_s`, and rows for LEAST_RATE besides. The server
    bounds its memory and forgets by itself: `pin`, `pass_over` and `tidy` do nothing."""

    name = "remote"
    far = True

    def __init__(self, identity: ModelIdentity, url: str, ttl_s: int, timeout_s: float, codec: CacheCodec = CacheCodec.NONE):
        """Does not connect yet. Raises ConfigError if `url` is none, or redis-py is not installed."""
        self.stats = PlaceStats()
        self._identity, self._root, self._ttl_s, self._timeout_s = identity, identity.root_key(), ttl_s, timeout_s
        self._client = _client(url, timeout_s)
        self._loading_client = _client(url, timeout_s + identity.layout.block_bytes(BLOCK_TOKENS) / LEAST_RATE)
        # No request waits for writes, so their socket's timeout covers a whole block.
        self._writing_client = _client(url, timeout_s + identity.layout.block_bytes(BLOCK_TOKENS) / LEAST_RATE)
        where = self._client.connection_pool.connection_kwargs
        what = f"the prefix server at {where.get('path') or '{}:{}'.format(where.get('host', 'localhost'), where.get('port', 6379))}"
        self._asking, self._writing = (Outage(what, BACK_OFF_S, self.stats) for _ in range(2))
        self._codec, self._rate, self._written = codec, Rate(), Rate()
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="edgekv-ask")

    @property
    def working(self) -> bool:
        return self._asking.working

    @property
    def writable(self) -> bool:
        return self._asking.working and self._writing.working

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._disconnect()
        self._writing_client.connection_pool.disconnect()

    # ---- reading ---------------------------------------------------------------------------------------------------------------------

    def have(self, links: Sequence[Link]) -> list[bool]:
        found = self._ask(lambda: self._copies(self._client, links))
        return [copy is not None for copy in found] if found else [False] * len(links)

    def children(self, parents: Sequence[bytes], snapshots: bool = False) -> list[list[Child]]:
        return self._ask(lambda: self._listed(self._client, parents, SNAPSHOTS if snapshots else CHILDREN)) or [[] for _ in parents]

    def open(self, links: Sequence[Link]) -> list[ComingBlock | None]:
        """All headers in one request."""
        wanted = [copy for link in links for copy in link.copies()]
        found = self._ask(lambda: self._headers(wanted)) if wanted else None
        there = {(copy.key, copy.rounded): (copy, *one) for copy, one in zip(wanted, found or ()) if one[1]}
        best = [there.get((link.key, False)) or there.get((link.key, link.rounded)) for link in links]
        return [None if one is None else self._open_one(*one) for one in best]

    def _headers(self, copies: Sequence[Link]) -> list[tuple[bytes, int]]:
        """The first bytes of blocks, with the whole header, and their number of bytes; no bytes for a missing block."""
        pipeline = self._client.pipeline(transaction=False)
        for copy in copies:
            pipeline.getrange(self._name_of(copy), 0, FIRST_READ - 1)
            pipeline.strlen(self._name_of(copy))
        answers = pipeline.execute()
        return [(first, n_bytes) for first, n_bytes in zip(answers[::2], answers[1::2])]

    def _open_one(self, link: Link, first: bytes, n_bytes: int) -> ComingBlock | None:
        try:
            n_header = header_bytes(first)
            if n_header > len(first):
                more = self._ask(lambda: self._client.getrange(self._name_of(link), len(first), n_header - 1))
                first += more or b""
            header = decode_header(first)
            header.check(self._root, link, self._identity.layout, n_bytes)
        except Refused as refused:
            self._refuse(link, refused)
            return None
        return ComingBlock(header.link, header.tokens, header.layout,
                           lambda layers, out: self._fill(header, first[: header.start], layers, out), self._rate)

    def _fill(self, header: BlockHeader, first: bytes, layers: range, out: np.ndarray) -> bool:
        """Bounded by the time of a call, and by LEAST_RATE besides."""
        name = self._name_of(header.link)
        try:
            return read_layers(header, layers, out, lambda start, stored: self._read(name, start, stored))
        except Refused as refused:
            now = self._ask(lambda: self._client.getrange(name, 0, len(first) - 1))
            if now == first:  # else it was evicted, and other rows were written in its place
                self._refuse(header.link, refused)
            return False

    def _read(self, name: str, start: int, out: np.ndarray) -> bool:
        """Fill `out`, uint8 [bytes], with those of a value from `start` on; False: they did not come in time, or are no longer there."""
        pool = self._loading_client.connection_pool
        connection = self._ask(pool.get_connection)
        if connection is None:
            return False
        began = monotonic()
        until = began + self._timeout_s + len(out) / LEAST_RATE
        try:
            came = self._try(lambda: read_range(connection, name, start, out.data, until), self._asking)
        finally:
            pool.release(connection)
        if came:
            self._rate.stored(len(out), monotonic() - began)
        return bool(came)

    def _refuse(self, link: Link, refused: Refused) -> None:
        self.stats.n_refused += 1
        if self.stats.n_refused == 1:
            log.warning("%s has a block that is not used: %s; more such blocks are not reported", self._asking.what, refused)
        if refused.damaged:
            self._ask(lambda: self._client.unlink(self._name_of(link)))

    def _copies(self, client: Any, links: Sequence[Link]) -> list[Link | None]:
        """The copy of each block that will do, the better one if there are two; None: there is none."""
        wanted = [copy for link in links for copy in link.copies()]
        pipeline = client.pipeline(transaction=False)
        for copy in wanted:
            pipeline.exists(self._name_of(copy))
        there = {(copy.key, copy.rounded): copy for copy, n in zip(wanted, pipeline.execute()) if n}
        return [there.get((link.key, False)) or there.get((link.key, link.rounded)) for link in links]

    def _listed(self, client: Any, parents: Sequence[bytes], kind: str) -> list[list[Child]]:
        """The listed successors of some blocks that the server still has. If it has forgotten many of a list, they are removed from it."""
        pipeline = client.pipeline(transaction=False)
        for parent in parents:
            pipeline.hgetall(self._name(parent, kind))
        lists = pipeline.execute()
        named = [[child for field, value in listed.items() if (child := _child(parent, field, value, kind == SNAPSHOTS)) is not None]
                 for parent, listed in zip(parents, lists)]
        links = [child.link for children in named for child in children]
        there = {link.key: copy for link, copy in zip(links, self._copies(client, links)) if copy is not None} if links else {}
        for parent, listed, children in zip(parents, lists, named):
            gone = [_field(child.link) for child in children if child.link.key not in there]
            if len(listed) > MOST_CHILDREN and gone:
                client.hdel(self._name(parent, kind), *gone)
        return [[Child(there[child.link.key], child.tokens) for child in children if child.link.key in there] for children in named]

    # ---- writing ---------------------------------------------------------------------------------------------------------------------

    def touch(self, chain: Sequence[Link]) -> list[Link]:
        def expire() -> list[Link]:
            pipeline = self._writing_client.pipeline(transaction=False)
            for link in chain:
                pipeline.expire(self._name(link.key), self._ttl_s)
                pipeline.expire(self._name(link.key, ROUNDED), self._ttl_s)
                pipeline.expire(self._name(link.parent, _kind(link)), self._ttl_s)
            answers = pipeline.execute()
            return [link for link, raw, rounded, listed in zip(chain, answers[::3], answers[1::3], answers[2::3])
                    if not ((raw or link.rounded and rounded) and listed)]

        return self._try(expire, self._writing) or []

    def write(self, block: Block) -> Outcome:
        if block.payload.nbytes > MOST_BLOCK_BYTES:
            return Outcome.DECLINED
        return self._try(lambda: self._write(block), self._writing) or Outcome.LATER

    def _write(self, block: Block) -> Outcome:
        rounded = block.may_round and self._identity.in_f16 and rounds(self._codec, self._rate, True, self._written)
        link, listing = block.link.copy(block.link.rounded or rounded), self._name(block.link.parent, _kind(block.link))
        there = [copy for copy in link.copies() if self._writing_client.expire(self._name_of(copy), self._ttl_s)]
        if not there:
            if block.link.rounded:
                return Outcome.DECLINED
            data = b"".join(encode(block, self._identity, rounded))
            began = monotonic()
            self._writing_client.set(self._name_of(link), data, ex=self._ttl_s)
            self._written.stored(len(data), monotonic() - began)
            self.stats.n_written += 1
            self.stats.n_written_bytes += len(data)
        tails = [] if link.snapshot else covered_tails(self._listed(self._writing_client, [link.parent], CHILDREN)[0], block, link.rounded)
        pipeline = self._writing_client.pipeline(transaction=False)
        pipeline.hset(listing, _field(link), block.tokens.astype("<i4").tobytes())
        pipeline.expire(listing, self._ttl_s)
        for tail in tails:
            pipeline.hdel(listing, _field(tail.link))
            pipeline.unlink(self._name(tail.link.key), self._name(tail.link.key, ROUNDED))
        pipeline.execute()
        return Outcome.WRITTEN

    # ---- a server that fails ---------------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[], T]) -> T | None:
        """The answer; None if it did not come in time."""
        if not self.working:
            return None
        try:
            future = self._pool.submit(question)
        except RuntimeError:  # closed meanwhile
            return None
        # redis-py bounds each read alone, which a server that answers byte by byte never exceeds; this bounds their sum
        return self._try(lambda: future.result(self._timeout_s), self._asking)

    def _try(self, call: Callable[[], T], outage: Outage) -> T | None:
        """The result of `call`. A failure is an outage of the server, or, if the server only refuses, the named one."""
        from redis import exceptions

        try:
            answer = call()
        except exceptions.ResponseError as error:  # full, read-only or forbidden
            outage.failed(f"refuses: {_first_line(error)}")
        except Exception as error:  # whatever redis-py raises for a broken server's answer is a miss, never an error
            late = isinstance(error, (FutureTimeout, exceptions.TimeoutError))
            self._asking.failed(f"does not answer within {self._timeout_s:g} s" if late else f"cannot be used ({_first_line(error)})")
            self._disconnect()
        else:
            self._asking.succeeded()
            outage.succeeded()
            return answer
        return None

    def _disconnect(self) -> None:
        """Close the connections, so that waiting threads get an error."""
        for client in (self._client, self._loading_client):
            client.connection_pool.disconnect(inuse_connections=True)

    def _name_of(self, copy: Link) -> str:
        return self._name(copy.key, ROUNDED if copy.rounded else "")

    def _name(self, key: bytes, more: str = "") -> str:
        return f"edgekv:{self._root.hex()}:{key.hex()}{more}"


def _client(url: str, timeout_s: float) -> Any:
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        raise ConfigError('a prefix server needs redis-py, which is not installed; install it with `pip install "edgekv[redis]"`') from None
    try:
        return redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0),
                                    protocol=2, socket_read_size=1 << 20)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the address of the prefix server is {url.split('@')[-1]!r}; write redis://HOST:PORT or rediss://HOST:PORT "
                          f"({_first_line(error)})") from None


def _kind(link: Link) -> str:
    return SNAPSHOTS if link.snapshot else CHILDREN


def _field(link: Link) -> bytes:
    return link.key + bytes([link.reading]) + link.read_with


def _child(parent: bytes, field: bytes, value: bytes, snapshot: bool) -> Child | None:
    """The block or snapshot that a field of the hash names; None for other fields."""
    if not KEY_BYTES < len(field) <= KEY_BYTES + 1 + MOST_READ_WITH_BYTES or field[KEY_BYTES] > max(Reading):
        return None
    if len(value) % 4 or not (0 if snapshot else 4) <= len(value) <= 4 * BLOCK_TOKENS:
        return None
    tokens = np.frombuffer(value, "<i4").astype(np.int32)
    link = (snapshot_link if snapshot else child_link)(parent, Reading(field[KEY_BYTES]), tokens, field[KEY_BYTES + 1 :])
    return Child(link.copy(not snapshot), tokens) if link.key == field[:KEY_BYTES] else None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
