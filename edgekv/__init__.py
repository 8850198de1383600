"""EdgeKV: a tiered KV cache for llama.cpp, driven from Python.

`edgekv.Llama` is `llama_cpp.Llama` with KV options; `edgekv.runtime` attaches to any llama_context of the process.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version as _version

try:
    __version__ = _version("edgekv")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["Llama", "__version__"]

owns_process = False
"""Whether this process is our command line, which tells in a sentence how native code ended it; a library does not touch signals."""


def __getattr__(name: str):
    # llama_cpp takes half a second to import; `edgekv --help` must not pay for it
    if name == "Llama":
        from edgekv.llama import Llama

        return Llama
    raise AttributeError(f"module 'edgekv' has no attribute {name!r}")
