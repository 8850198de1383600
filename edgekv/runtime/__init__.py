"""Contexts of this process: what is attached to them, and what they say about themselves."""

from importlib import import_module

from edgekv import _native, owns_process

_PUBLIC = ("Runtime", "attach", "defaults", "find", "last_failure", "live", "raise_failure", "set_defaults")

# before any file of this package, or llama_cpp, loads a library; a command leaves the versions to its server, which can end the load
(_native.load if owns_process else _native.prepare)()


def __getattr__(name: str):
    # imported when it is asked for: the package's own files import this one
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    return getattr(import_module(f"edgekv.runtime.{'runtime' if name == 'Runtime' else 'attachments'}"), name)
