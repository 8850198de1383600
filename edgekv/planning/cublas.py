"""cuBLAS, which llama.cpp calls on a GPU for some matrices and a machine need not have: whether a file has such ones, before anything runs."""

from collections.abc import Iterable, Sequence

from edgekv.models.reader import TensorInfo
from edgekv.models.traffic import TABLES

_CALLED_FOR = frozenset({"F32", "F16", "BF16", "IQ1_M"})
"""Types that llama.cpp multiplies with more than sixteen tokens by cuBLAS alone (`ggml_cuda_mul_mat` and `ggml_cuda_should_use_mmq`)."""
_NOT_MULTIPLIED = ("norm", "conv")
_ALL_BEFORE = 75
"""Compute capability from which prompts of the other types have kernels of llama.cpp's own on every card."""


def matrix(tensors: Sequence[TensorInfo], arch: int) -> TensorInfo | None:
    """The first matrix for which llama.cpp calls cuBLAS on a GPU of compute capability `arch`, 89 for 8.9; None: there is none."""
    return next((one for one in _matrices(tensors) if arch < _ALL_BEFORE or one.type in _CALLED_FOR), None)


def _matrices(tensors: Sequence[TensorInfo]) -> Iterable[TensorInfo]:
    """What activations are multiplied with, and Mamba-2's A, a number a head, whose scan multiplies states (`ssm_scan_ssd_f32_cuda`)."""
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    rows = {name for name in TABLES if not (tied and name == "token_embd.weight")}
    for tensor in tensors:
        named = tensor.name.endswith((".weight", ".lora_a", ".lora_b")) and not any(part in tensor.name for part in _NOT_MULTIPLIED)
        if named and min((*tensor.shape, 1)[:2]) > 1 and tensor.name not in rows or tensor.name.endswith(".ssm_a") and tensor.shape[:-1] == (1,):
            yield tensor
