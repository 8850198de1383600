"""Libraries of the system that others bring."""

import ctypes


def can_load(name: str) -> bool:
    """Whether the loader finds a library, e.g. "libcuda.so.1". `ctypes.util.find_library` would ask a compiler and a linker for one that is not
    there, which takes longer than a whole plan."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
