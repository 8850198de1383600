"""Reads the metadata of a GGUF file, fast, and says in one sentence what is wrong with any other file.

`gguf.GGUFReader` makes several NumPy arrays for each element of an array, which takes seconds for a vocabulary and its merges, and a model would
have loaded before the package and NumPy are imported. Here an array stays one piece of the mapped file, and tensors are described, not mapped.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from edgekv.errors import ModelError
from edgekv.models.ggml_types import numbered

HEADER_ONLY = "edgekv.header_only"
"""Key of files that were written without their tensors, for planning."""

_VERSIONS = (2, 3)
"""Of GGUF, that llama.cpp reads."""

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
    type: str  # e.g. "Q4_1"
    n_bytes: int
    end: int  # file offset one past the last byte

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


class _Truncated(ValueError):
    pass


class Field(NamedTuple):
    """Where a value lies in the file; an array has a length."""

    kind: int
    """Of the value, or of an array's elements."""
    n: int | None
    start: int
    end: int


_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""What `struct` calls a kind of numbers."""

_UINT32, _STRING, _ARRAY = 4, 8, 9


class MetadataReader:
    """The header of a file: `value()` and `length()` of its fields, and its tensors. Arrays of strings have only a length, and `raw()`."""

    def __init__(self, path: Path):
        """Raises _Truncated where the file ends in its header, ValueError where that is not one."""
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 8  # behind magic and version
        n_tensors, n_fields = self._take("QQ")
        self.fields: dict[str, Field] = {}
        for _ in range(n_fields):
            name = self._take_text()
            if name in self.fields:
                raise ValueError(f"{name} is there twice")
            self.fields[name] = self._take_field()
        infos = [(self._take_text(), self._take(f"{self._take('I')[0]}Q"), *self._take("IQ")) for _ in range(n_tensors)]
        alignment = self._alignment()
        start = -(-self._at // alignment) * alignment
        self.tensor_infos = [_tensor(name, shape, number, start + offset) for name, shape, number, offset in infos]

    @property
    def n_bytes(self) -> int:
        """Bytes of the file."""
        return len(self._bytes)

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a scalar or string, a list for an array of numbers, `default` where the file does not say."""
        field = self.fields.get(key)
        if field is None:
            return default
        if field.kind == _STRING:
            return [] if field.n is not None else self.raw(key).decode(errors="replace")
        values = struct.unpack_from(f"<{1 if field.n is None else field.n}{_SCALARS[field.kind]}", self._bytes, field.start)
        return values[0] if field.n is None else list(values)

    def length(self, key: str) -> int:
        """Number of elements of an array; 0 if there is none."""
        field = self.fields.get(key)
        return field.n or 0 if field is not None else 0

    def raw(self, key: str) -> bytes:
        """The bytes of a field; each string of an array has its length before it. Raises KeyError."""
        field = self.fields[key]
        return self._bytes[field.start : field.end]

    def _take(self, form: str) -> tuple[Any, ...]:
        """The next numbers of the file, which `form` names as `struct` does."""
        try:
            numbers = struct.unpack_from(f"<{form}", self._bytes, self._at)
            self._at += struct.calcsize(f"<{form}")
        except struct.error:
            raise _Truncated from None
        return numbers

    def _skip(self, n: int) -> int:
        """Where the next n bytes begin."""
        start = self._at
        if n > len(self._bytes) - start:
            raise _Truncated
        self._at += n
        return start

    def _take_text(self) -> str:
        start = self._skip(self._take("Q")[0])
        return self._bytes[start : self._at].decode()

    def _take_field(self) -> Field:
        n, (kind,) = None, self._take("I")
        if kind == _ARRAY:
            kind, n = self._take("IQ")
        if kind in _SCALARS:
            start = self._skip((1 if n is None else n) * struct.calcsize(f"<{_SCALARS[kind]}"))
        elif kind != _STRING:
            raise ValueError(f"there is no kind {kind} of values")
        elif n is None:
            start = self._skip(self._take("Q")[0])
        else:
            start = self._skip(_strings_end(self._bytes, self._at, n) - self._at)
        return Field(kind, n, start, self._at)

    def _alignment(self) -> int:
        field = self.fields.get("general.alignment")
        if field is None:
            return 32
        alignment = self.value("general.alignment")
        if (field.kind, field.n) != (_UINT32, None) or alignment.bit_count() != 1:
            raise ValueError("its alignment is not a power of two")
        return alignment


def _tensor(name: str, shape: tuple[int, ...], number: int, start: int) -> TensorInfo:
    kind = numbered(number)
    n_bytes = math.prod(shape) * kind.block_bytes // kind.block
    return TensorInfo(name, shape, kind.name, n_bytes, start + n_bytes)


def _strings_end(data: mmap.mmap, offset: int, count: int) -> int:
    """The end of so many strings."""
    view, length_at = memoryview(data), struct.Struct("<Q").unpack_from
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
        files = sorted(p.name for p in path.glob("*.gguf"))
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
    except (OSError, ValueError, OverflowError) as error:
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
        if version in _VERSIONS:
            return
        if int.from_bytes(head[4:8], "big") in _VERSIONS:
            raise ModelError(f"{path} is a GGUF file for big-endian machines; get the little-endian one")
        allowed = " or ".join(str(v) for v in _VERSIONS)
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
