"""Libraries of the system that others bring."""

import ctypes
import re
from pathlib import Path


def can_load(name: str) -> bool:
    """Whether the loader finds a library, e.g. "libcuda.so.1". `ctypes.util.find_library` would ask a compiler and a linker for one that is not
    there, which takes longer than a whole plan."""
    return load_problem(name) is None


def load_problem(name: str) -> str | None:
    """Why the loader cannot open a library, as a clause; None: it can."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        missing = re.match(r"(\S+): cannot open shared object file", str(error))
        return f"the library {missing[1]} is not found" if missing else str(error)
    return None


def cublas_problem(backend: Path) -> str | None:
    """Why llama.cpp's library for NVIDIA's GPUs, `backend`, cannot open cuBLAS, as a clause; None: it can. Raises OSError if it cannot be opened itself."""
    asked = ctypes.CDLL(str(backend)).edgekv_cublas_problem
    asked.restype = ctypes.c_char_p
    why = asked()
    return None if why is None else why.decode()
