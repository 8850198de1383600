"""Contexts of this process: what is attached to them, and what they say about themselves."""

_PUBLIC = ("Runtime", "defaults", "find", "last_failure", "live", "raise_failure", "set_defaults")


def __getattr__(name: str):
    # imported when it is asked for, as all of `edgekv`: llama_cpp takes half a second
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from edgekv.runtime import runtime

    return getattr(runtime, name)
