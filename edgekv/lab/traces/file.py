"""A trace's file: a zip that numpy.load can read too.

    header.json                   format, version and the fields of TraceHeader, as UTF-8
    steps/000032.mass_sum.npy     float16 [step, layer, kv_head, page]: 32 steps from step 32 on, the pages in use after the last; attention
                                  mass with full attention, summed over the query heads of the group
    steps/000032.mass_max.npy     the same, with the maximum over the query heads in place of the sum
    steps/000032.sampled_sum.npy  mass_sum as mode sparse observed it: the weighted mass of the read rows
    steps/000032.sampled_max.npy  the same, with the maximum over the query heads
    steps/000032.n_read.npy       uint16: the number of rows that mode sparse read of the page

A step decodes one token; step 0 is the first after the tokens read in batches, and the first of the warm-up if there is one. The
layers of these arrays are the hooked ones. Mode sparse's observations come from a pass of their own over the same tokens, at
`TraceHeader.resolution`; in it earlier layers also attend by sampling, as they do live.
Members may stand in any order. float16 keeps a mass within 0.05 %, or within 3e-8 below 6e-5. Each member is deflated
by itself, so that a reader needs memory for only one.

A file is written as FILE.part and renamed when complete: an existing FILE is whole.
Version 1 had estimates of sketches in place of mode sparse's observations.
"""

from __future__ import annotations

import contextlib
import errno
import json
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, convert, structs

from edgekv.common.errors import ConfigError, EdgeKVError
from edgekv.pages.shape import PageShape

FORMAT = "edgekv-trace"
VERSION = 2
CHUNK_STEPS = 32
DEFLATE_LEVEL = 1
HEADER = "header.json"
MASS_SUM, MASS_MAX, SAMPLED_SUM, SAMPLED_MAX, N_READ = "mass_sum", "mass_max", "sampled_sum", "sampled_max", "n_read"
FULL = (MASS_SUM, MASS_MAX)
"""Arrays of full attention."""
SAMPLED = (SAMPLED_SUM, SAMPLED_MAX, N_READ)
"""Arrays of mode sparse."""
KINDS = (*FULL, *SAMPLED)
"""The arrays of each chunk."""


class TraceHeader(Struct, frozen=True):
    """Describes a trace."""

    model: str
    """File name of the model."""
    text: str
    depth: int
    """Tokens in the cache when the first measured step begins, including the warm-up."""
    n_warmup: int
    """Steps of the warm-up: every policy sees them in full, and they are not measured. The attention of earlier tokens is unknown,
    because they were read in batches."""
    n_steps: int
    """Measured steps."""
    n_heads: int
    """KV heads of the layer with most heads."""
    n_pages: int
    """Pages in use after the last step."""
    page_tokens: int
    layers: tuple[int, ...]
    """Each hooked layer's number in the model."""
    groups: tuple[int, ...]
    """Query heads of each KV head, for each layer."""
    exists: tuple[tuple[bool, ...], ...]
    """[layer][head]: the layer has that KV head."""
    resolution: float
    """The resolution of mode sparse's sampling."""
    rope: tuple[int, int, float, float] | None = None
    """head_dim, rotated channels, base and linear scaling factor of the rotary embedding."""
    type_k: str = "f16"
    type_v: str = "f16"
    version: int = VERSION

    def __post_init__(self) -> None:
        lengths = {len(self.layers), len(self.groups), len(self.exists)}
        if len(lengths) > 1 or {len(heads) for heads in self.exists} - {self.n_heads}:
            raise ConfigError(f"a trace of {len(self.layers)} layers must have as many groups, and {self.n_heads} heads for each")
        if min(self.n_prompt, self.n_warmup) < 0 or min(self.n_steps, self.n_layers, self.n_heads, self.page_tokens) < 1:
            raise ConfigError("a trace must have at least one step, layer and head, and no more warm-up steps than its depth")
        if self.n_pages != self.n_used_end(self.n_total - 1):
            raise ConfigError(f"{self.depth} + {self.n_steps} tokens fill {self.n_used_end(self.n_total - 1)} pages of "
                              f"{self.page_tokens}, not {self.n_pages}")

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def group(self) -> int:
        """Query heads of a KV head, in the layer with most of them."""
        return max(self.groups)

    @property
    def n_prompt(self) -> int:
        """Tokens read in batches."""
        return self.depth - self.n_warmup

    @property
    def n_total(self) -> int:
        """Steps including the warm-up."""
        return self.n_warmup + self.n_steps

    @property
    def shape(self) -> PageShape:
        return PageShape(self.n_layers, self.n_heads, self.n_pages, self.page_tokens, exists=np.array(self.exists))

    def position(self, step: int) -> int:
        """The position of a step's token."""
        return self.n_prompt + step

    def n_used_end(self, step: int) -> int:
        """Pages in use in a step, including its own token's."""
        return self.position(step) // self.page_tokens + 1

    def page_positions(self, position: int) -> np.ndarray:
        """int32 [page]: the newest position in each page when `position` is the newest of all; -1: the page is empty."""
        first = np.arange(self.n_pages, dtype=np.int32) * self.page_tokens
        return np.where(first > position, -1, np.minimum(first + self.page_tokens - 1, position)).astype(np.int32)


def dtype_of(kind: str) -> type[np.generic]:
    """The stored type of one of KINDS."""
    return np.uint16 if kind == N_READ else np.float16


def chunk_starts(header: TraceHeader) -> range:
    return range(0, header.n_total, CHUNK_STEPS)


def _member(kind: str, start: int) -> str:
    return f"steps/{start:06d}.{kind}.npy"


def _members(header: TraceHeader) -> set[str]:
    """The members of a complete file besides its header."""
    return {_member(kind, start) for kind in KINDS for start in chunk_starts(header)}


class TraceFile:
    """A complete trace file, read member by member. Raises ConfigError for another kind of file, a damaged one, or another version."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self._file = np.load(path)
            names = set(self._file.files)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
        except (AttributeError, ValueError, EOFError, zipfile.BadZipFile):
            raise ConfigError(f"{path} is not a trace, or only a part of one; record one with `edgekv lab trace record`") from None
        try:
            self.header = self._header()
            if missing := {name.removesuffix(".npy") for name in _members(self.header)} - names:
                raise ConfigError(f"{path} is damaged: {min(missing)} is missing in it; record the trace again")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def _header(self) -> TraceHeader:
        try:
            values = json.loads(self._member(HEADER))
            found, version = values.get("format"), values.get("version")
        except (KeyError, ValueError, AttributeError):
            found, version = None, None
        if found != FORMAT:
            raise ConfigError(f"{self.path} is not a trace; record one with `edgekv lab trace record`")
        if version != VERSION:
            raise ConfigError(f"{self.path} is a trace of version {version} and this EdgeKV reads version {VERSION}; "
                              "record it again")
        try:
            return convert(values, TraceHeader)
        except ValueError as error:
            raise ConfigError(f"{self.path} is damaged: {error}; record the trace again") from None

    def chunk(self, kind: str, start: int) -> np.ndarray:
        """[step, layer, head, page] from step `start` on, of the stored type."""
        header = self.header
        n = min(CHUNK_STEPS, header.n_total - start)
        name, dtype = _member(kind, start), dtype_of(kind)
        shape = (n, header.n_layers, header.n_heads, header.n_used_end(start + n - 1))
        array = np.asarray(self._member(name))
        if array.dtype != dtype or array.shape != shape:
            raise ConfigError(f"{self.path} is damaged: {name} is {array.dtype} {array.shape} and not {np.dtype(dtype)} {shape}; record the trace again")
        return array

    def _member(self, name: str) -> Any:
        """An array, or the bytes of another member. Raises KeyError."""
        try:
            return self._file[name]
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, OSError) as error:
            raise ConfigError(f"{self.path} is damaged: {name} cannot be read ({error}); record the trace again") from None


class TraceWriter:
    """Writes a trace file, as a context manager: without an error inside, the file exists afterwards; otherwise nothing is left.

    Members are written as they come, so that at most one is in memory. `replaced`: whether the part of an
    unfinished earlier recording was found and is overwritten. Raises EdgeKVError if the disk is full, ConfigError if
    the file cannot be created.
    """

    def __init__(self, path: Path, header: TraceHeader):
        self.path, self.header = path, header
        self._part = path.with_name(path.name + ".part")
        self.replaced = self._part.exists()
        if path.is_dir():
            raise ConfigError(f"{path} is a folder; name a file to write the trace to")
        try:
            self._file = self._part.open("wb")
        except OSError as error:
            raise ConfigError(f"{self._part} cannot be written: {error.strerror}") from None
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED, compresslevel=DEFLATE_LEVEL)
        self._written: set[str] = set()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._discard()
            return
        try:
            if missing := _members(self.header) - self._written:
                raise ValueError(f"the trace is not complete: {min(missing)} was not written")
            text = json.dumps({"format": FORMAT, **structs.asdict(self.header)}, indent=1)
            self._guarded(lambda: self._zip.writestr(HEADER, text))
            self._guarded(self._zip.close)
            self._guarded(self._file.close)
            self._guarded(lambda: self._part.replace(self.path))
        except BaseException:
            self._discard()
            raise

    def chunk(self, kind: str, start: int, array: np.ndarray) -> None:
        """Write one of KINDS, [step, layer, head, page] from step `start` on, rounded to its stored type."""
        self._write(_member(kind, start), np.ascontiguousarray(array, dtype_of(kind)))

    def _write(self, name: str, array: np.ndarray) -> None:
        def write() -> None:
            with self._zip.open(name, "w") as member:
                np.lib.format.write_array(member, array, allow_pickle=False)

        self._guarded(write)
        self._written.add(name)

    def _guarded(self, act: Callable[[], Any]) -> None:
        try:
            act()
        except OSError as error:
            why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
            raise EdgeKVError(f"the trace {self.path} was not written: {why}; free some space, or record fewer steps, "
                              "and try again") from None

    def _discard(self) -> None:
        self._zip.fp = None  # otherwise it would write its directory when collected
        with contextlib.suppress(OSError):  # buffered data does not fit either
            self._file.close()
        self._part.unlink(missing_ok=True)
