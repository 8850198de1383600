"""Checks that this processor can run the libraries. It is done before they are loaded: an instruction that it lacks would
end the process without a word."""

from collections.abc import Iterable

from edgekv._native._cpu import ffi, lib
from edgekv.common.errors import NativeError

_NAMED = 4  # instruction sets in the sentence; a much older processor lacks twenty


def needed() -> tuple[str, ...]:
    """The instruction sets that the libraries use, by their names in /proc/cpuinfo; empty for a build that runs anywhere."""
    return tuple(ffi.string(lib.edgekv_cpu_needed()).decode().split())


def lacking(names: Iterable[str]) -> tuple[str, ...]:
    """Those that this processor does not have, or that the kernel does not let programs use. A name that is not known counts as there."""
    return tuple(name for name in names if lib.edgekv_cpu_has(name.encode()) == 0)


def check() -> None:
    """Raises NativeError if the libraries were compiled for another processor."""
    if missing := lacking(needed()):
        from edgekv.common.machine import cpu_name

        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise NativeError(
            f"this edgekv was compiled for a processor with {', '.join(missing[:_NAMED])}{more}, which this one ({cpu_name()}) does not have; "
            "install it again on this machine, or build it with EDGEKV_CPU=all, which runs on every processor of its kind")
