"""Standard input and output of one question: pipes and files that may be silent, closed or full."""

import io
import os
import select
import sys
from collections.abc import Callable
from typing import BinaryIO

from edgekv.common.errors import EdgeKVError

_SILENT_S = 1.0
_BYTES = 1 << 16


def read_piped(stream: BinaryIO, say: Callable[[str], object], silent_s: float = _SILENT_S) -> bytes:
    """All that comes from a stream; say(line) once, if nothing comes for `silent_s` seconds. Raises EdgeKVError if it cannot be read."""
    try:
        number = stream.fileno()
    except io.UnsupportedOperation:  # no pipe, but bytes of this process
        return stream.read()
    parts: list[bytes] = []
    told = False
    try:
        while not parts or parts[-1]:
            if not told and not select.select([number], [], [], silent_s)[0]:
                told = True
                say("waiting for the end of standard input, whose text goes after the prompt; Ctrl-D ends it, and </dev/null gives none")
            parts.append(os.read(number, _BYTES))
    except OSError as error:
        raise EdgeKVError(f"standard input cannot be read: {error.strerror}") from None
    return b"".join(parts)


def check_output() -> None:
    """Raise EdgeKVError if standard output was closed, before a model is loaded for it."""
    try:
        os.write(sys.stdout.fileno(), b"")
    except io.UnsupportedOperation:  # a text of this process
        pass
    except OSError as error:
        raise unwritable(error) from None


def unwritable(error: OSError) -> EdgeKVError:
    return EdgeKVError(f"standard output cannot be written: {error.strerror}; what was not written is lost")
