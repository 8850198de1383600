"""Reads the metadata of a GGUF file with ggml's own reader, and says in one sentence what is wrong with any other file."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from edgekv.common.errors import ModelError
from edgekv.common.units import size
from edgekv.models.kept import Kept, identity, settled

if TYPE_CHECKING:
    from edgekv._native.gguf_header import GgufHeader

HEADER_ONLY = "edgekv.header_only"
"""Key of files that were written without their tensors, for planning."""

MAPPED_AT = 32
"""llama.cpp ends the process where weights that it maps begin at other bytes."""

_VERSIONS = (2, 3)
"""Of GGUF, that llama.cpp reads."""

_MOST_NUMBERS = 1024
"""Of an array that is kept: one for each layer, and not one for each token of a vocabulary, which takes most of the time of reading a header."""

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


class TensorInfo(Struct, frozen=True):
    name: str
    shape: tuple[int, ...]  # in GGUF order: the row length comes first
    type: str  # e.g. "Q4_1"
    n_bytes: int
    end: int  # file offset one past the last byte

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


class MetadataReader:
    """The header of a file: its fields and its tensors. Arrays of texts have a length, and `texts()`. A file that was opened before is not read again,
    but for long arrays."""

    def __init__(self, path: Path):
        """Raises ValueError in ggml's words where it cannot read the header, NativeError without our libraries."""
        self.path, self.n_bytes = path, path.stat().st_size
        kept = Kept(path, identity([path]), "header.json")
        if not kept.facts:
            kept.facts = _facts(self._header)
            if settled(path):
                kept.keep()
        self._lengths, self._values = kept.facts["lengths"], kept.facts["values"]
        self.tensor_infos = [TensorInfo(name, tuple(shape), *more) for name, shape, *more in kept.facts["tensors"]]

    @cached_property
    def _header(self) -> GgufHeader:
        from edgekv._native.gguf_header import GgufHeader  # where the libraries are missing, only what needs them says so

        return GgufHeader(self.path)

    def __contains__(self, key: str) -> bool:
        return key in self._lengths

    def value(self, key: str, default: Any = None) -> Any:
        """The value of a scalar or text, a list for an array of numbers, `default` where the file does not say."""
        if key in self._values:
            return self._values[key]
        return self._header.value(key) if key in self else default

    def length(self, key: str) -> int:
        """Number of elements of an array; 0 if there is none."""
        length: int = self._lengths.get(key, 0)
        return length

    def texts(self, key: str) -> list[bytes]:
        """An array of texts; empty if there is none."""
        return self._header.texts(key) if key in self else []


def _facts(header: GgufHeader) -> dict[str, Any]:
    """A header without its long arrays."""
    lengths = {key: header.length(key) for key in header.fields}
    return {"lengths": lengths, "values": {key: header.value(key) for key, n in lengths.items() if n <= _MOST_NUMBERS},
            "tensors": list(header.tensors())}


def open_gguf(path: Path, whole: bool = True) -> MetadataReader:
    """Open a model file and check that its header is complete, and with `whole` its tensors too. Raises ModelError with one sentence."""
    if not path.exists():
        raise ModelError(f"there is no file {path}; give the path of a GGUF model")
    if path.is_dir():
        files = sorted(p.name for p in path.iterdir() if p.suffix.lower() == ".gguf")
        found = ", ".join(files[:4]) + " and more" * (len(files) > 4) if files else "no GGUF file"
        give = f"give {path / files[0]}" if len(files) == 1 else f"give the path of {'one' if files else 'a GGUF model'}"
        raise ModelError(f"{path} is a directory, not a GGUF file; it contains {found}: {give}")
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
    except ModelError:
        raise
    except ValueError as error:
        raise ModelError(f"{path} is truncated or damaged in its header, or of a newer kind ({error}); download it again") from None
    if any((tensor.end - tensor.n_bytes) % MAPPED_AT for tensor in reader.tensor_infos):
        raise ModelError(f"{path} has weights at multiples of {reader.value('general.alignment')} bytes, and llama.cpp maps them at multiples of {MAPPED_AT}: "
                         "convert it again without general.alignment")
    missing = max((tensor.end for tensor in reader.tensor_infos), default=0) - n_bytes
    if missing > 0 and whole:
        if HEADER_ONLY in reader:
            raise ModelError(f"{path} holds the header of a model and no weights; `edgekv plan` reads it, and nothing can run it")
        raise ModelError(f"{path} is truncated: the last {size(missing)} of its weights are missing; download it again")
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
