"""The attention that a context computed in a step, and full attention over all of its cache in double precision."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from support.double import as_values

from edgekv import _native
from edgekv.runtime.runtime import Runtime

import llama_cpp

_ggml = ctypes.CDLL(str(next(_native.lib_dir().glob("libggml-base.so*"))))
_ggml.ggml_get_name.restype, _ggml.ggml_get_name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
_ggml.ggml_get_data.restype, _ggml.ggml_get_data.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
_ggml.ggml_nelements.restype, _ggml.ggml_nelements.argtypes = ctypes.c_int64, [ctypes.c_void_p]


class Capture:
    """Copies of the queries ("Qcur") and of the attention's output ("kqv_out") of each layer, for steps in which it is `on`. `arguments`
    are for the Context."""

    def __init__(self) -> None:
        self.on = False
        self._found: dict[str, np.ndarray] = {}
        self._callback = llama_cpp.ggml_backend_sched_eval_callback(self._seen)

    @property
    def arguments(self) -> dict:
        return {"cb_eval": self._callback}

    def __getitem__(self, name: str) -> np.ndarray:
        """float32, flat; of several with this name the last."""
        return self._found[name]

    def _seen(self, tensor: int, ask: bool, _: int) -> bool:
        name = _ggml.ggml_get_name(tensor).decode()
        wanted = self.on and name.startswith(("Qcur-", "kqv_out-"))
        if wanted and not ask:
            n = _ggml.ggml_nelements(tensor)
            self._found[name] = np.ctypeslib.as_array((ctypes.c_float * n).from_address(_ggml.ggml_get_data(tensor))).copy()
        return wanted or not ask


@dataclass(frozen=True)
class Full:
    """Of one layer and query token."""

    mass: np.ndarray
    """float64 [query head, cell]"""
    output: np.ndarray
    """float64 [query head, head_dim]"""


def full(run: Runtime, layer: int, q: np.ndarray, cells: Sequence[int], weights: np.ndarray | None = None) -> Full:
    """Attention of a query over these cells of stream 0, each with its weight, without soft-cap and sinks. The cache is f16: other types
    are stored turned."""
    keys, values = (as_values(rows(layer)[0][cells]) for rows in (run.cells.keys, run.cells.values))
    q = q.reshape(-1, keys.shape[2]).astype(np.float64)
    keys, values = (np.repeat(rows, len(q) // keys.shape[1], axis=1) for rows in (keys, values))
    logits = np.einsum("hd,chd->hc", q, keys) / np.sqrt(q.shape[1])
    mass = np.exp(logits - logits.max(axis=1, keepdims=True)) * (1 if weights is None else weights)
    mass /= mass.sum(axis=1, keepdims=True)
    return Full(mass, np.einsum("hc,chd->hd", mass, values))
