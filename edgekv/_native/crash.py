"""The sentence that a person reads where native code ends the process. Only for a process that is ours: a library leaves such things alone."""

import faulthandler
from pathlib import Path

from edgekv._native._core import ffi, lib


def tell() -> None:
    """From now on an abort, a fatal signal or an uncaught exception of native code is told in one sentence on standard error as it is
    now; where each Python thread was goes to file descriptor 2, wherever that points by then."""
    faulthandler.enable(2)  # before ours, which comes first and calls it then
    lib.edgekv_tell_crashes()


def details_in(path: Path | None) -> None:
    """The file that the sentence names for details; None: it names none."""
    lib.edgekv_set_crash_details(ffi.NULL if path is None else str(path).encode())
