"""Contexts of this process: what is attached to them, and what they say about themselves."""

from edgekv import _native

_PUBLIC = ("Runtime", "attach", "defaults", "find", "last_failure", "live", "raise_failure", "set_defaults")

_native.prepare()  # before any file of this package, or llama_cpp, loads a library


def __getattr__(name: str):
    # imported when it is asked for: the package's own files import this one
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgekv.runtime import attachments

    return getattr(attachments, name)
