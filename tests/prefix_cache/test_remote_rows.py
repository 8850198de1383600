"""Rows that are read from a shared server's answer, whatever it sends."""

import socket
from time import monotonic

import pytest

from edgekv.prefix_cache.remote_rows import read_range

exceptions = pytest.importorskip("redis", reason="redis-py is not installed (edgekv[redis])").exceptions


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
