"""Which types of weights llama.cpp puts into layouts of their own for this processor, and multiplies with kernels made for these.

The library is asked, as llama.cpp asks it where a model is loaded: the answer depends on what it was compiled with, and on what the
processor has and the kernel lets programs use.
"""

import ctypes
from collections.abc import Iterator

from edgekv import _native

WEIGHT_TYPES = {
    "F16": 1, "BF16": 30, "Q8_0": 8, "Q5_0": 6, "Q5_1": 7, "Q4_0": 2, "Q4_1": 3, "Q6_K": 14, "Q5_K": 13, "Q4_K": 12, "Q3_K": 11, "Q2_K": 10,
    "IQ4_NL": 20, "IQ4_XS": 23, "IQ3_S": 21, "IQ3_XXS": 18, "IQ2_S": 22, "IQ2_XS": 17, "IQ2_XXS": 16, "IQ1_M": 29, "IQ1_S": 19, "MXFP4": 39,
}
"""Types of matrices in model files: `enum ggml_type` by name."""

_SIDE = 256
"""Rows and columns of the matrix that is asked about: a multiple of every type's block and every kernel's tile."""

_TOKENS = 512
_EXPERTS = 8
_CPU = 0  # GGML_BACKEND_DEVICE_TYPE_CPU
_F32, _I32 = 0, 26  # GGML_TYPE_F32, GGML_TYPE_I32
_CONTEXT_BYTES = 1 << 14  # of a few tensors without data

_Pointer = ctypes.c_void_p


class _InitParams(ctypes.Structure):
    """ggml_init_params"""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", _Pointer), ("no_alloc", ctypes.c_bool)]


_FUNCTIONS = {  # of ggml: result, arguments
    "ggml_type_name": (ctypes.c_char_p, ctypes.c_int),
    "ggml_init": (_Pointer, _InitParams),
    "ggml_free": (None, _Pointer),
    "ggml_new_tensor_2d": (_Pointer, _Pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64),
    "ggml_new_tensor_3d": (_Pointer, _Pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64),
    "ggml_mul_mat": (_Pointer, _Pointer, _Pointer, _Pointer),
    "ggml_mul_mat_id": (_Pointer, _Pointer, _Pointer, _Pointer, _Pointer),
    "ggml_backend_dev_by_type": (_Pointer, ctypes.c_int),
    "ggml_backend_dev_backend_reg": (_Pointer, _Pointer),
    "ggml_backend_reg_get_proc_address": (_Pointer, _Pointer, ctypes.c_char_p),
    "ggml_backend_dev_supports_op": (ctypes.c_bool, _Pointer, _Pointer),
    "ggml_backend_buft_name": (ctypes.c_char_p, _Pointer),
    "ggml_backend_alloc_ctx_tensors_from_buft": (_Pointer, _Pointer, _Pointer),
    "ggml_backend_buffer_free": (None, _Pointer),
}


def layouts(experts: bool = False) -> dict[str, str | None]:
    """By name of WEIGHT_TYPES: llama.cpp's layout of matrices of that type, or of a mixture's experts ("AMX",
    "CPU_REPACK"); None: they stay as in the file."""
    _native.prepare()
    ggml = _library()
    device = ggml.ggml_backend_dev_by_type(_CPU)
    found = list(_layouts_of(ggml, device))
    return {name: next((ggml.ggml_backend_buft_name(layout).decode() for layout in found if _takes(ggml, device, layout, kind, experts)), None)
            for name, kind in WEIGHT_TYPES.items()}


def multiplied_by_us(name: str, layout: str | None) -> bool:
    """Whether our kernels multiply weights of a type of WEIGHT_TYPES, in the layout of layouts(), by tokens."""
    from edgekv._native._core import ffi, lib

    alive = ffi.NULL if layout is None else ffi.new("char[]", layout.encode())
    return lib.edgekv_multiplies((WEIGHT_TYPES[name], alive))


def _library() -> ctypes.CDLL:
    ggml = ctypes.CDLL(next(str(path) for path in _native.lib_dir().iterdir() if path.name in ("libggml.so", "libggml.dylib", "ggml.dll")))
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(ggml, name)
        function.restype, function.argtypes = result, arguments
    return ggml


def _layouts_of(ggml: ctypes.CDLL, device: int) -> Iterator[int]:
    """The processor's buffer types besides the plain one, the preferred first."""
    address = ggml.ggml_backend_reg_get_proc_address(ggml.ggml_backend_dev_backend_reg(device), b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return
    listed = ctypes.CFUNCTYPE(ctypes.POINTER(_Pointer), _Pointer)(address)(device)
    for layout in listed or ():
        if not layout:  # the end of the list
            return
        yield layout


def _takes(ggml: ctypes.CDLL, device: int, layout: int, kind: int, experts: bool) -> bool:
    """Whether matrices of type `kind` in that layout can be multiplied by a prompt's activations."""
    weights, others = (ggml.ggml_init(_InitParams(_CONTEXT_BYTES, None, True)) for _ in range(2))
    matrix = ggml.ggml_new_tensor_3d(weights, kind, _SIDE, _SIDE, _EXPERTS if experts else 1)
    buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(weights, layout)
    try:
        if experts:
            product = ggml.ggml_mul_mat_id(others, matrix, ggml.ggml_new_tensor_3d(others, _F32, _SIDE, 1, _TOKENS),
                                           ggml.ggml_new_tensor_2d(others, _I32, 1, _TOKENS))
        else:
            product = ggml.ggml_mul_mat(others, matrix, ggml.ggml_new_tensor_2d(others, _F32, _SIDE, _TOKENS))
        return bool(buffer) and ggml.ggml_backend_dev_supports_op(device, product)
    finally:
        if buffer:
            ggml.ggml_backend_buffer_free(buffer)
        for context in (weights, others):
            ggml.ggml_free(context)
