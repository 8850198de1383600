"""llama.cpp's quantiser: files whose tensors have the types that people use."""

import ctypes
import os
from pathlib import Path

from edgekv import _native
from edgekv.common import machine
from edgekv.common.errors import EdgeKVError


def quantise(source: Path, target: Path, mixture: str, pure: bool = False) -> None:
    """Write `source`, a file of f16, as a mixture such as q4_k_m; pure: every matrix in its main type. Takes minutes for each billion weights.
    Raises EdgeKVError on failure."""
    _native.prepare()
    import llama_cpp
    from llama_cpp._logger import set_verbose

    set_verbose(False)
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{mixture.upper()}")
    options.nthread, options.pure = machine.n_cores(), pure
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(options)) != 0:
        raise EdgeKVError(f"{source.name} could not be quantised as {mixture}; is there room for it on the disk?")
