"""Ctrl-C and SIGTERM while a context decodes: they are noticed between two decodes.

Native code calls Python after each ubatch, and no caller could catch an exception raised there.
"""

from __future__ import annotations

import signal
import threading

from edgekv.common.errors import EXIT_TERMINATED

_pending: KeyboardInterrupt | None = None


class Terminated(KeyboardInterrupt):
    """SIGTERM ends the work as Ctrl-C does."""

    exit_code = EXIT_TERMINATED


_SIGNALS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


class Interrupts:
    """Inside, the first Ctrl-C or SIGTERM waits for `check`, the second does not. It changes nothing outside the main thread."""

    def __enter__(self) -> Interrupts:
        global _pending
        _pending = None
        is_main = threading.current_thread() is threading.main_thread()
        self._before = {number: signal.signal(number, _noticed) for number in _SIGNALS} if is_main else {}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)


def check() -> None:
    """Raise KeyboardInterrupt once after Ctrl-C, Terminated after SIGTERM."""
    global _pending
    found, _pending = _pending, None
    if found is not None:
        raise found


def _noticed(number: int, _: object) -> None:
    global _pending
    if _pending is not None:
        raise _pending
    _pending = _SIGNALS[signal.Signals(number)]()
