"""Ctrl-C while a context decodes: it is noticed between two decodes.

Native code calls Python after each ubatch, and no caller could catch an exception raised there.
"""

from __future__ import annotations

import signal
import threading

_pending = False


class Interrupts:
    """Inside, the first Ctrl-C waits for `check`, the second does not. It changes nothing outside the main thread."""

    def __enter__(self) -> Interrupts:
        global _pending
        _pending = False
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGINT, _noticed)
        return self

    def __exit__(self, *_: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, signal.SIG_DFL if self._before is None else self._before)


def check() -> None:
    """Raise KeyboardInterrupt once after Ctrl-C."""
    global _pending
    if _pending:
        _pending = False
        raise KeyboardInterrupt


def _noticed(*_: object) -> None:
    global _pending
    if _pending:
        raise KeyboardInterrupt
    _pending = True
