"""A Redis-compatible server below RAM: what is shared, what becomes of a server that fails, and rows that are read from its answer, whatever it sends."""

import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest
from support import stores
from support.calls import watch
from support.prefix_rows import check_rows, conversation, identity
from support.redis_server import RedisServer, free_port
from support.stores import n_restored
from support.stores import save_through as save

from edgekv.common.errors import ConfigError
from edgekv.prefix_cache.blocks import Conversation, Reading
from edgekv.prefix_cache.place_rates import Rate
from edgekv.prefix_cache.remote import RedisPlace
from edgekv.prefix_cache.remote_rows import read_range
from edgekv.prefix_cache.store import PrefixStore

EXACT, _, SAMPLED, SPARSE = Reading
exceptions = pytest.importorskip("redis", reason="redis-py is not installed (edgekv[redis])").exceptions


def open_store(url: str, **more) -> PrefixStore:
    return stores.open_store(url=url, **{"url_timeout_s": 20.0} | more)


@pytest.mark.parametrize("readings", [[EXACT] * 1300, [EXACT] * 600 + [SAMPLED] * 700], ids=["exact", "sampled at its end"])
@pytest.mark.parametrize("near", [0, 600], ids=["all of it is far", "its beginning is in RAM"])
def test_a_server_is_asked_once_for_each_label_of_a_chain(server, monkeypatch, readings, near):
    tokens, asked = conversation(1300), []
    save(open_store(server.url), tokens, readings)
    other = open_store(server.url)
    n_restored(other, tokens[:near], 0, SPARSE)
    watch(monkeypatch, RedisPlace, "have", lambda _, links: asked.append(len(links)))
    watch(monkeypatch, RedisPlace, "children", lambda _, _of, snapshots=False: snapshots and pytest.fail("of a model of rows"))
    assert n_restored(other, tokens, 0, SPARSE) == 1300
    assert len(asked) == len(set(readings)), asked


@pytest.mark.parametrize("change", [lambda client, name: client.delete(name), lambda client, name: client.set(name, b"x")], ids=["gone", "shorter"])
def test_rows_that_went_after_they_were_found_are_a_miss(server, change):
    tokens = conversation(600)
    save(open_store(server.url), tokens)
    other = open_store(server.url)
    hit = stores.restore(other, tokens, 0, EXACT, in_part=True)
    for name in server.client.keys("edgekv:*"):
        if b"children" not in name:
            change(server.client, name)
    assert [piece.read(range(1)) for piece in hit.pieces] == [None] * 3 and other.places[0].working
    other.release(hit, 0)
    server.client.flushall()
    save(open_store(server.url), tokens)
    assert n_restored(other, tokens) == 600, "by the same connections"


def test_two_processes_share(server, tmp_path):
    program = """
import sys
sys.path.insert(0, sys.argv[2])
from support.prefix_rows import conversation
from support.stores import open_store, save
store = open_store(url=sys.argv[1], url_timeout_s=5)
save(store, conversation(700, 5))
store.close()
"""
    subprocess.run([sys.executable, "-c", program, server.url, str(Path(__file__).parent.parent)], cwd=tmp_path, check=True, timeout=60)
    assert n_restored(open_store(server.url), conversation(700, 5)) == 700


def test_everything_has_a_time_to_live_that_use_renews(server):
    tokens = conversation(600)
    store = open_store(server.url, url_ttl_s=100)
    save(store, tokens)
    keys = server.client.keys("edgekv:*")
    assert len(keys) == 6 and all(0 < server.client.ttl(key) <= 100 for key in keys)
    for key in keys:
        server.client.expire(key, 7)
    n_restored(store, tokens)
    assert store.flush(5)
    assert all(server.client.ttl(key) > 7 for key in keys)


class Reached:
    """A server that is as fast as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fast: bool):
        self.n_bytes: list[float] = []
        monkeypatch.setattr(Rate, "brings", lambda rate, n_bytes, _, unpacked: self.n_bytes.append(n_bytes) or unpacked and fast and rate._n_bytes > 0)


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "slow"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside others"])
def test_rows_that_come_soon_are_in_memory_once(server, monkeypatch, fast, alone):
    """The rate is known by the first block. Of the others whole ones go into the slot alone, and their rows there are kept, and not sent again."""
    tokens, asked = conversation(1000), Reached(monkeypatch, fast)
    save(open_store(server.url), tokens)
    store = open_store(server.url)
    hit = store.load(store.match_prefix(Conversation(tokens), EXACT))
    hit = store.fetch(hit, lambda: len(hit.pieces), alone)
    passes = [fast and alone and i in (1, 2) for i in range(4)]
    assert asked.n_bytes[:2] == ([sum(piece.block.n_bytes for piece in hit.pieces[i:]) for i in range(2)] if alone else [])
    assert [piece.block.payload is None for piece in hit.pieces] == passes
    assert [piece.coming for piece in hit.pieces] == [fast and alone and i > 0 for i in range(4)]
    assert hit.holds.n_bytes == store.ram.n_bytes == sum(piece.block.n_bytes for piece, passed in zip(hit.pieces, passes) if not passed)
    assert check_rows(hit, tokens, 0, EXACT) == 1000
    store.release(hit, 4)
    assert [link.key in store.ram for link in hit.chain] == [not passed for passed in passes]
    assert store.ram.n_bytes == sum(piece.block.n_bytes for piece, passed in zip(hit.pieces, passes) if not passed)
    rows: list[tuple[int, int]] = []
    save(store, tokens, calls=rows)
    assert rows == ([(256, 256), (512, 256)] if fast and alone else [])
    assert store.stats().remote.n_written == 0 and store.ram.below >= {link.key for link in hit.chain}
    assert {piece.source for piece in stores.restore(store, tokens, 0, EXACT).pieces} == {"ram"}


def test_rows_that_came_and_are_gone_are_sent_again(server, tmp_path, monkeypatch):
    """What a slot holds of them is written into the folder, and to the server once that has forgotten them."""
    tokens = conversation(768)
    Reached(monkeypatch, True)
    save(open_store(server.url), tokens)
    store = open_store(server.url, folder=tmp_path)
    hit = store.load(store.match_prefix(Conversation(tokens), EXACT))
    hit = store.fetch(hit, lambda: len(hit.pieces), True)
    assert check_rows(hit, tokens, 0, EXACT) == 768
    store.release(hit, 3)
    server.client.flushall()
    save(store, tokens)
    assert store.stats().disk.n_written == 3
    save(store, tokens)
    store.close()
    assert n_restored(open_store(server.url), tokens) == 768


# ---- a server that fails -----------------------------------------------------------------------------------------------------------


def test_keys_of_another_kind_are_a_miss(server, caplog):
    tokens = conversation(600)
    save(open_store(server.url), tokens)
    for key in server.client.keys("edgekv:*"):
        server.client.delete(key)
        server.client.lpush(key, "x")
    store = open_store(server.url)
    assert n_restored(store, tokens) == 0 and n_restored(store, tokens) == 0
    assert len(caplog.records) == 1 and "refuses" in caplog.text


BROKEN: dict[str, list[bytes] | None] = {
    "silent": [], "byte by byte": [b"$1000\r\n", *[b"x"] * 999], "no Redis": [b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20], "hangs up": None, "no server": None}
"""What a server sends, in parts with 50 ms between them: no single read takes long."""


def listen(parts: list[bytes] | None, came: list[tuple[str, int]]) -> int:
    """The port of a server that sends these over each connection, and adds to `came` who connected."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            for part in parts or ():
                connection.sendall(part)
                time.sleep(0.05)
            time.sleep(0 if parts is None else 60)

    def run() -> None:
        while True:
            connection, client = listener.accept()
            came.append(client)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=run, daemon=True).start()
    return listener.getsockname()[1]


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_server_is_a_miss_said_once_and_asked_once(how, caplog, monkeypatch):
    monkeypatch.setattr("edgekv.prefix_cache.remote.BACK_OFF_S", 3600.0)
    came: list[tuple[str, int]] = []
    port = free_port() if how == "no server" else listen(BROKEN[how], came)
    store, tokens = open_store(f"redis://127.0.0.1:{port}", url_timeout_s=0.3), conversation(600)
    assert n_restored(store, conversation(600, 0)) == 0
    n_came = len(came)
    for seed in range(1, 20):
        assert n_restored(store, conversation(600, seed)) == 0
    assert len(came) == n_came, "it is left alone"
    save(store, tokens)
    assert n_restored(store, tokens) == 600
    assert len(caplog.records) == 1, caplog.text
    store.close(1)


def test_addresses_that_are_none_and_passwords_that_are_not_said(caplog):
    for url in ("localhost:6379", "http://user:secret@host", "redis://user:secret@localhost:port"):
        with pytest.raises(ConfigError, match="redis://HOST:PORT") as caught:
            open_store(url)
        assert "secret" not in str(caught.value)
    n_restored(open_store("redis://:secret@127.0.0.1:1"), conversation(300))
    assert "127.0.0.1:1" in caplog.text and "secret" not in caplog.text


def test_without_redis_py_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"edgekv\[redis\]"):
        RedisPlace(identity(), "redis://localhost", 1, 1)


# ---- encrypted ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encrypted")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key", "-out", "certificate"], cwd=folder, check=True, capture_output=True)
    server = RedisServer(folder, certificate=folder)
    yield server
    server.kill()


def test_an_encrypted_server(encrypted):
    tokens = conversation(700)
    save(open_store(encrypted.url), tokens)
    assert encrypted.client.dbsize() > 0
    assert n_restored(open_store(encrypted.url), tokens) == 700


def test_a_certificate_that_nobody_vouches_for_is_a_miss(encrypted, caplog):
    store = open_store(encrypted.url.partition("?")[0])
    assert not stores.restore(store, conversation(700), 0, EXACT).pieces and not store.places[0].working
    assert "certificate" in caplog.text.lower()


# ---- rows in an answer -------------------------------------------------------------------------------------------------------------


class Connection:
    """One of redis-py, as far as it is used, to a server that has sent `answer` and then nothing, or has `ended`."""

    def __init__(self, answer: bytes, ended: bool):
        self._sock, self._server = socket.socketpair()
        self._server.sendall(answer)
        self.asked: list[tuple] = []
        self.closed = False
        if ended:
            self._server.close()

    def send_command(self, *command) -> None:
        self.asked.append(command)

    def disconnect(self) -> None:
        self.closed = True


def read(connection: Connection, n: int, seconds: float = 60.0) -> bytes | None:
    out = bytearray(n)
    return bytes(out) if read_range(connection, "rows", 10, memoryview(out), monotonic() + seconds) else None


def test_parts_follow_each_other(monkeypatch):
    monkeypatch.setattr("edgekv.prefix_cache.remote_rows.MOST_ASKED_BYTES", 4)
    connection = Connection(b"$4\r\nabcd\r\n$4\r\n\r\n$9\r\n$1\r\n!\r\n", ended=True)
    assert read(connection, 9) == b"abcd\r\n$9!" and not connection.closed
    assert connection.asked == [("GETRANGE", "rows", 10, 13), ("GETRANGE", "rows", 14, 17), ("GETRANGE", "rows", 18, 18)]


@pytest.mark.parametrize("answer", [b"$3\r\nabc\r\n", b"$0\r\n\r\n", b"$-1\r\n", b"$05\r\nabcde\r\n"])
def test_another_length_is_a_miss_and_closes(answer):
    connection = Connection(answer, ended=False)
    assert read(connection, 5) is None and connection.closed


def test_a_refusal_leaves_the_connection_open():
    connection = Connection(b"-WRONGTYPE it is a list\r\n$1\r\na\r\n", ended=False)
    with pytest.raises(exceptions.ResponseError, match="WRONGTYPE it is a list"):
        read(connection, 5)
    assert not connection.closed and read(connection, 1) == b"a"


def test_a_refusal_with_more_behind_it_closes():
    connection = Connection(b"-NO\r\n$1\r\na\r\n", ended=False)
    with pytest.raises(exceptions.ResponseError, match="^NO$"):
        read(connection, 1_000_000)
    assert connection.closed


@pytest.mark.parametrize("answer", [b"", b"$5", b"$5\r\nabc", b"$5\r\nabcde"])
@pytest.mark.parametrize(("ended", "error"), [(True, "ConnectionError"), (False, "TimeoutError")], ids=["and ends", "and goes silent"])
def test_a_server_that_stops_in_the_middle(answer, ended, error):
    connection = Connection(answer, ended)
    with pytest.raises(getattr(exceptions, error)):
        read(connection, 5, 60.0 if ended else 0.01)
    assert connection.closed


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b":5\r\n", b"x" * 1000])
def test_what_is_no_answer(answer):
    connection = Connection(answer, ended=False)
    with pytest.raises(exceptions.InvalidResponse):
        read(connection, 5)
    assert connection.closed
