"""The instruction set of the kernels in use, and the speed of each."""

from edgekv._native._core import ffi, lib
from edgekv._native.core import _check, isas
from edgekv.common.errors import ConfigError


def use_isa(name: str) -> None:
    """Use another instruction set from the next ubatch on, while nothing decodes."""
    _check(lib.edgekv_use_isa(_isa_number(name)))


def time_prompts(name: str) -> float:
    """Seconds of an instruction set's prompt kernel for a small problem."""
    seconds = ffi.new("double *")
    _check(lib.edgekv_time_prompts(_isa_number(name), seconds))
    return seconds[0]


def _isa_number(name: str) -> int:
    if name not in (known := isas()):
        raise ConfigError(f"there is no instruction set {name!r}")
    return known.index(name)
