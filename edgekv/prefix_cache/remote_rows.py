"""Reads a part of a Redis-compatible server's value into memory that is there. redis-py opens the connection; if it read as well, it would copy all bytes
three times, each time into new memory."""

from time import monotonic
from typing import Any

MOST_ASKED_BYTES = 1 << 20
"""Of one question: what the server copies, and the sockets hold, then stays in the processor's caches (LOG.md)."""

MOST_LINE_BYTES = 512
"""Of an answer's first line. No server of this protocol begins with a longer one."""


def read_range(connection: Any, name: str, start: int, out: memoryview, until: float) -> bool:
    """Fill `out`, bytes, with those of a value from `start` on; False: it has fewer, or is not there. `connection`: of redis-py, with no answer under way; it
    is closed where one may be. `until`: monotonic() at which the server is too slow. Raises what redis-py raises, and OSError."""
    return all(_read_range(connection, name, start + first, out[first : first + MOST_ASKED_BYTES], until) for first in range(0, len(out), MOST_ASKED_BYTES))


def _read_range(connection: Any, name: str, start: int, out: memoryview, until: float) -> bool:
    from redis import exceptions

    done = False
    try:
        connection.send_command("GETRANGE", name, start, start + len(out) - 1)
        socket = connection._sock  # it has no public name; redis-py's parsers take it from here too
        expected = b"$%d\r\n" % len(out)
        line = _first_line(socket, len(expected), until)
        if line[:1] == b"-":
            said, _, more = line.partition(b"\r\n")
            done = not more
            raise exceptions.ResponseError(said[1:].decode(errors="replace"))
        if line[:1] != b"$":
            raise exceptions.InvalidResponse("it does not speak this protocol")
        if line == expected:
            _fill(socket, out, until)
            _fill(socket, memoryview(bytearray(2)), until)  # the end of its line
            done = True
        return done
    finally:
        if not done:
            connection.disconnect()


def _first_line(socket: Any, n: int, until: float) -> bytes:
    """The line before the rows that were asked for, of n bytes, and nothing behind it; a shorter one may have more behind it."""
    from redis import exceptions

    line = b""
    while b"\r\n" not in line:  # a longer one comes byte by byte
        if len(line) >= MOST_LINE_BYTES:
            raise exceptions.InvalidResponse("it does not speak this protocol")
        part = bytearray(max(n - len(line), 1))
        line += part[: _some(socket, memoryview(part), until)]
    return line


def _fill(socket: Any, out: memoryview, until: float) -> None:
    n = 0
    while n < len(out):
        n += _some(socket, out[n:], until)


def _some(socket: Any, out: memoryview, until: float) -> int:
    """Read as many bytes as are there, one at least; their number."""
    from redis import exceptions

    try:
        socket.settimeout(max(until - monotonic(), 1e-3))
        came = socket.recv_into(out)
    except TimeoutError:
        came = -1
    if came < 0 or monotonic() > until:
        raise exceptions.TimeoutError("rows do not come in time")
    if came == 0:
        raise exceptions.ConnectionError("it closed the connection")
    return came
