"""Headers of GGUF files, and ggml's types, as ggml itself reads and names them. NumPy is not needed, nor `prepare()`: no model is loaded."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from edgekv import _native
from edgekv._native._core import ffi, lib
from edgekv._native.core import _check

_NUMBERS = {
    lib.GGUF_TYPE_UINT8: "uint8_t *", lib.GGUF_TYPE_INT8: "int8_t *", lib.GGUF_TYPE_UINT16: "uint16_t *", lib.GGUF_TYPE_INT16: "int16_t *",
    lib.GGUF_TYPE_UINT32: "uint32_t *", lib.GGUF_TYPE_INT32: "int32_t *", lib.GGUF_TYPE_UINT64: "uint64_t *", lib.GGUF_TYPE_INT64: "int64_t *",
    lib.GGUF_TYPE_FLOAT32: "float *", lib.GGUF_TYPE_FLOAT64: "double *", lib.GGUF_TYPE_BOOL: "bool *",
}


class GgufHeader:
    """`fields` has the place of each value by its name."""

    def __init__(self, path: Path):
        """Raises ValueError, in ggml's words, if the header is damaged or ends too early; AbiMismatch if llama_cpp runs on other libraries."""
        _native._check_llama_cpp(_native.lib_dir())
        out = ffi.new("struct gguf_context **")
        status = lib.edgekv_read_gguf(os.fsencode(path), out)
        if status == lib.EDGEKV_UNSUPPORTED:
            said = _text(lib.edgekv_last_error()).strip().partition(": ")[2]  # behind the name of ggml's function
            raise ValueError("".join(one if one.isprintable() else "?" for one in said))
        _check(status)
        self._header = ffi.gc(out[0], lib.gguf_free)
        self.fields = {_text(lib.gguf_get_key(self._header, at)): at for at in range(lib.gguf_get_n_kv(self._header))}

    def value(self, key: str) -> Any:
        """A scalar or text; a list for an array of numbers, an empty one for texts (`texts()`). Raises KeyError."""
        at = self.fields[key]
        kind = lib.gguf_get_kv_type(self._header, at)
        if kind == lib.GGUF_TYPE_STRING:
            return _text(lib.gguf_get_val_str(self._header, at))
        if kind != lib.GGUF_TYPE_ARRAY:
            return ffi.cast(_NUMBERS[kind], lib.gguf_get_val_data(self._header, at))[0]
        kind = lib.gguf_get_arr_type(self._header, at)
        n = self.length(key)
        if kind == lib.GGUF_TYPE_STRING or n == 0:
            return []
        return ffi.unpack(ffi.cast(_NUMBERS[kind], lib.gguf_get_arr_data(self._header, at)), n)

    def length(self, key: str) -> int:
        """Elements of an array; 0 for anything else. Raises KeyError."""
        at = self.fields[key]
        return lib.gguf_get_arr_n(self._header, at) if lib.gguf_get_kv_type(self._header, at) == lib.GGUF_TYPE_ARRAY else 0

    def texts(self, key: str) -> list[bytes]:
        """An array of texts; empty for anything else. Raises KeyError."""
        at, n = self.fields[key], self.length(key)
        if n == 0 or lib.gguf_get_arr_type(self._header, at) != lib.GGUF_TYPE_STRING:
            return []
        return [ffi.string(lib.gguf_get_arr_str(self._header, at, i)) for i in range(n)]

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], str, int, int]]:
        """Each tensor's name, shape with the row length first, type, bytes, and the offset in the file where it ends."""
        start = lib.gguf_get_data_offset(self._header)
        for at in range(lib.gguf_get_n_tensors(self._header)):
            shape = ffi.unpack(lib.gguf_get_tensor_ne(self._header, at), lib.GGML_MAX_DIMS)
            while len(shape) > 1 and shape[-1] == 1:  # ggml fills up with ones
                shape.pop()
            n_bytes = lib.gguf_get_tensor_size(self._header, at)
            yield (_text(lib.gguf_get_tensor_name(self._header, at)), tuple(shape), _type_name(lib.gguf_get_tensor_type(self._header, at)), n_bytes,
                   start + lib.gguf_get_tensor_offset(self._header, at) + n_bytes)


def _text(found: Any) -> str:
    return ffi.string(found).decode(errors="replace")


@cache
def _type_name(number: int) -> str:
    return _text(lib.ggml_type_name(number)).upper()


@cache
def block_sizes() -> dict[str, tuple[int, int]]:
    """Numbers and bytes of a block of each type, e.g. of "Q4_1"; types that ggml no longer has are missing."""
    return {_type_name(number): (n, lib.ggml_type_size(number)) for number in range(lib.GGML_TYPE_COUNT) if (n := lib.ggml_blck_size(number)) > 0}


@cache
def type_numbers() -> dict[str, int]:
    """enum ggml_type, by names as those of `block_sizes()`."""
    return {_type_name(number): number for number in range(lib.GGML_TYPE_COUNT)}


@cache
def file_types() -> dict[int, str]:
    """The mixes of types that `general.file_type` numbers, e.g. "Q4_K_M", by llama.cpp's enum: its function's names are others than people use."""
    names = ffi.typeof("enum llama_ftype").elements
    return {number: name.removeprefix("LLAMA_FTYPE_").removeprefix("ALL_").removeprefix("MOSTLY_") for number, name in names.items()}
