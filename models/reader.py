"""Reads the metadata of a GGUF file, fast, and says in one sentence what is wrong with any other file.

`gguf.GGUFReader` makes several NumPy arrays for each element of an array, which takes seconds for a vocabulary and its merges. Here an array
stays one view of the mapped file, and tensors are described, not mapped.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.gguf_reader import READER_SUPPORTED_VERSIONS, ReaderField

from edgekv.common.errors import ModelError

HEADER_ONLY = "edgekv.header_only"
"""Key of files that were written without their tensors, for planning."""

_LENGTH = struct.Struct("<Q")

# First bytes of files that people take for models.
_FOREIGN = [
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint?)"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x7fELF", "a program or shared library"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"tjgg", "a GGML file from before GGUF (ggjt)"),
    (b"lmgg", "a GGML file from before GGUF (ggml)"),
    (b"fmgg", "a GGML file from before GGUF (ggmf)"),
    (b"version https://git-lfs", "a Git LFS pointer, not the model itself (fetch it with `git lfs pull`)"),
    (b"<!DOCTYPE", "an HTML page (a download that was answered with a web page?)"),
    (b"<html", "an HTML page (a download that was answered with a web page?)"),
]


@dataclass(frozen=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]  # in GGUF order: the row length comes first
    type: gguf.GGMLQuantizationType
    n_bytes: int
    end: int  # file offset one past the last byte

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


class _Truncated(ValueError):
    pass


class MetadataReader(gguf.GGUFReader):
    """Use `value()` and `length()`; arrays of strings have only a length.

    `fields` is as in GGUFReader, except that an array is one part; `tensor_infos` replaces `tensors`.
    """

    tensor_infos: list[TensorInfo]

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a scalar or string, a list for an array of numbers, `default` where the file does not say."""
        field = self.fields.get(key)
        if field is None:
            return default
        if field.types[0] == gguf.GGUFValueType.STRING:
            return bytes(field.parts[-1]).decode(errors="replace")
        return field.contents()

    def length(self, key: str) -> int:
        """Number of elements of an array; 0 if there is none."""
        field = self.fields.get(key)
        return int(field.parts[_ARRAY_LENGTH_PART][0]) if field is not None else 0

    # The rest overrides GGUFReader's own steps.

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> np.ndarray:
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise _Truncated
        self.data = np.asarray(self.data)  # type: ignore[assignment]  # a part of a mapped array takes eight times as long to make
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[np.ndarray], list[int], list[gguf.GGUFValueType]]:
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        item_type, n_items = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        start = orig_offs + 12
        kind = gguf.GGUFValueType(item_type[0])
        if kind in self.gguf_scalar_to_np:
            items = self._get(start, self.gguf_scalar_to_np[kind], n_items[0])
            data = [2]
        elif kind == gguf.GGUFValueType.STRING:
            items = self._get(start, np.uint8, _strings_end(self.data, start, int(n_items[0])) - start)
            data = []
        else:
            return super()._get_field_parts(orig_offs, raw_type)
        return 12 + items.nbytes, [item_type, n_items, items], data, [gguf.GGUFValueType.ARRAY, kind]

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        self.tensor_infos = []
        for field in fields:
            name, shape = bytes(field.parts[1]).decode(), tuple(int(n) for n in field.parts[3])
            kind = gguf.GGMLQuantizationType(field.parts[4][0])
            block, block_bytes = GGML_QUANT_SIZES[kind]
            n_bytes = math.prod(shape) * block_bytes // block
            self.tensor_infos.append(TensorInfo(name, shape, kind, n_bytes, start_offs + int(field.parts[5][0]) + n_bytes))


# Parts of a field: key length, key, value type; then for an array: element type, length, elements.
_ARRAY_LENGTH_PART = 4


def _strings_end(data: np.ndarray, offset: int, count: int) -> int:
    view, length_at = memoryview(data), _LENGTH.unpack_from  # type: ignore[arg-type]  # an array is a buffer
    try:
        for _ in range(count):
            offset += 8 + length_at(view, offset)[0]
    except (struct.error, OverflowError):
        raise _Truncated from None
    return offset


def open_gguf(path: Path, whole: bool = True) -> MetadataReader:
    """Open a model file and check that its header is complete, and with `whole` its tensors too. Raises ModelError with one sentence."""
    if not path.exists():
        raise ModelError(f"there is no file {path}; give the path of a GGUF model")
    if path.is_dir():
        files = sorted(p.name for p in path.iterdir() if p.suffix.lower() == ".gguf")
        found = ", ".join(files[:4]) + " and more" * (len(files) > 4) if files else "no GGUF file"
        raise ModelError(f"{path} is a directory, not a GGUF file; it contains {found}")
    n_bytes = path.stat().st_size
    if n_bytes == 0:
        raise ModelError(f"{path} is empty (zero bytes); download it again")
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    _check_head(path, head)
    try:
        reader = MetadataReader(path)
    except _Truncated:
        raise ModelError(f"{path} is truncated: it ends in its header, after {n_bytes} bytes; download it again") from None
    except Exception as error:  # the library raises ValueError, KeyError, IndexError, UnicodeDecodeError and more on damage
        raise ModelError(f"{path} is a damaged GGUF file, or of a newer kind ({error}); download it again") from None
    missing = max((tensor.end for tensor in reader.tensor_infos), default=0) - n_bytes
    if missing > 0 and whole:
        if HEADER_ONLY in reader.fields:
            raise ModelError(f"{path} holds the header of a model and no weights; `edgekv plan` reads it, and nothing can run it")
        raise ModelError(f"{path} is truncated: the last {missing} bytes of its weights are missing; download it again")
    return reader


def _check_head(path: Path, head: bytes) -> None:
    if head[:4] == b"GGUF":
        if len(head) < 8:
            raise ModelError(f"{path} is truncated: it ends after {len(head)} bytes; download it again")
        version = int.from_bytes(head[4:8], "little")
        if version in READER_SUPPORTED_VERSIONS:
            return
        if int.from_bytes(head[4:8], "big") in READER_SUPPORTED_VERSIONS:
            raise ModelError(f"{path} is a GGUF file for big-endian machines; get the little-endian one")
        allowed = " or ".join(str(v) for v in READER_SUPPORTED_VERSIONS)
        raise ModelError(f"{path} is GGUF version {version}, and only version {allowed} can be read; convert it again")
    raise ModelError(f"{path} is not a GGUF file: it looks like {_looks_like(path, head)}; EdgeKV runs GGUF models")


def _looks_like(path: Path, head: bytes) -> str:
    for start, name in _FOREIGN:
        if head.startswith(start):
            return name
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size:
        return "a safetensors file (convert it with llama.cpp's convert_hf_to_gguf.py)"
    if path.suffix == ".safetensors":
        return "a damaged safetensors file"
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # a character cut in two at the end says nothing
            return "some other binary file"
    return "some other binary file" if b"\0" in head else "text"
