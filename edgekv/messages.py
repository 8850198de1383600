"""llama.cpp's messages, as the log `edgekv.llama.cpp`. Import this before llama_cpp, which it puts on our libraries."""

import ctypes
import logging
import sys
from contextlib import nullcontext

from edgekv import _native

_native.check_packages()  # before llama_cpp loads a library

import llama_cpp  # noqa: E402

_upstream = logging.getLogger("edgekv.llama.cpp")
_upstream.addHandler(logging.NullHandler())  # otherwise Python prints warnings to standard error
_stock = logging.getLogger("llama-cpp-python")  # whose level says whether a Llama is verbose
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}  # of enum ggml_log_level


@llama_cpp.llama_log_callback
def _log(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    """Log llama.cpp's messages, and print them to standard error where `verbose` asks for them. It replaces llama_cpp's own callback, which
    numbers the levels as an older ggml did and so prints unwanted warnings."""
    kind, verbose = _LEVELS.get(level, logging.DEBUG), _stock.level <= logging.DEBUG
    if not verbose and not _upstream.isEnabledFor(kind):
        return  # as most do: a model has some thousand
    words = text.decode("utf-8", "replace")
    _upstream.log(kind, "%s", words.rstrip())
    if verbose:
        print(words, end="", file=sys.stderr, flush=True)


def listen() -> None:
    """Route llama.cpp's messages here. A server in this process takes them for itself: call this again after it."""
    llama_cpp.llama_log_set(_log, None)


listen()
for _part in (llama_cpp.llama, llama_cpp._internals):  # it hides the process's streams, for good where two threads load; `_log` prints nothing unasked
    _part.suppress_stdout_stderr = lambda disable: nullcontext()  # type: ignore[attr-defined]
