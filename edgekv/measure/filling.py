"""K and V of many tokens at once: from one context to another, and made up.

A block of n tokens is what `edgekv.runtime.tokens` has: uint8, for each layer keys [n, bytes] and then values [n, bytes].
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from msgspec import Struct

from edgekv.common.enums import CacheType
from edgekv.common.errors import EdgeKVError
from edgekv.measure.decoder import Decoder
from edgekv.models import geometry

import llama_cpp

BLOCK_TOKENS = 512
"""Tokens that move from one context to another at once."""

BANK_TOKENS = 2048
"""Made-up tokens that differ. Deeper caches repeat them: a repeated key takes as long as another one."""

KEY_SPREAD = 1.0
"""Standard deviation of a made-up key's entries, relative to computed keys."""

_STATE_MAGIC = 0xAF143CD8
"""Begins the saved state of a sequence (llama.cpp: io_magic)."""


class Fill(str, Enum):
    """The content of the cache before a test."""

    TEXT = "text"
    """A text, which is read once."""
    SYNTHETIC = "synthetic"
    """Made-up K and V: nothing is computed."""


class TokenLayout(Struct, frozen=True):
    """The layout of a token in a context: bytes of its key and of its value in each layer."""

    k_bytes: tuple[int, ...]
    v_bytes: tuple[int, ...]
    types_k: tuple[CacheType, ...]
    types_v: tuple[CacheType, ...]
    more_positions: int = 0
    """Further numbers of a saved cell: M-RoPE's two other positions and the token."""

    @classmethod
    def of(cls, decoder: Decoder) -> TokenLayout:
        """Raises EdgeKVError if a context keeps anything other than rows, windows and states."""
        assert decoder.kv is not None
        shape = geometry(Path(decoder.llama.model_path))
        if shape.index_rows or any(shape.index_dims):
            raise EdgeKVError("an index keeps keys of its own beside the rows")
        if not any(shape.n_head_kv):
            raise EdgeKVError("the model keeps states alone")
        cache = decoder.kv.options.cache
        m_rope = llama_cpp.llama_model_rope_type(decoder.llama.model) in (llama_cpp.LLAMA_ROPE_TYPE_MROPE, llama_cpp.LLAMA_ROPE_TYPE_IMROPE)
        k_bytes, v_bytes = decoder.kv.tokens.row_bytes()
        n = len(k_bytes)
        if (by_layer := cache.layer_types) is None:
            return cls(k_bytes, v_bytes, (cache.type_k,) * n, (cache.type_v,) * n, 3 if m_rope else 0)
        keeping = [il for il in range(shape.n_layer) if not shape.swa[il] and shape.layer_kv_bytes(il, "f16", "f16")]
        types_k, types_v = (tuple(kinds[il] for il in keeping) for kinds in (by_layer.k, by_layer.v))
        assert len(keeping) == n, "the header and the context count layers with rows alike"
        return cls(k_bytes, v_bytes, types_k, types_v, 3 if m_rope else 0)

    @property
    def token_bytes(self) -> int:
        return sum(self.k_bytes) + sum(self.v_bytes)

    def parts(self, block: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Keys and values of each layer, uint8 [n, bytes], in place."""
        n, first = block.nbytes // self.token_bytes, 0
        for k, v in zip(self.k_bytes, self.v_bytes):
            middle, end = first + n * k, first + n * (k + v)
            yield block[first:middle].reshape(n, k), block[middle:end].reshape(n, v)
            first = end

    def state(self, block: np.ndarray, position: int) -> np.ndarray:
        """The same tokens as a saved sequence of a context without flash attention, where V lies transposed: uint8."""
        n = block.nbytes // self.token_bytes
        cells = np.zeros((n, 3 + self.more_positions), np.int32)  # position, number of sequences, more positions, sequence
        cells[:] = np.arange(position, position + n)[:, np.newaxis]
        cells[:, 1], cells[:, -1] = 1, 0
        parts = list(self.parts(block))
        pieces: list[np.ndarray] = [np.array([_STATE_MAGIC, 0, 1, n], np.uint32), cells, np.array([1, len(parts)], np.uint32)]
        for (keys, _), width, kind in zip(parts, self.k_bytes, self.types_k):
            pieces += [np.array([kind.ggml_type], np.int32), np.array([width], np.uint64), keys]
        for (_, values), width, kind in zip(parts, self.v_bytes, self.types_v):
            if not width:  # compressed rows have only K
                continue
            pieces += [np.array([kind.ggml_type, 2, width // 2], np.int32), values.view(np.uint16).T]
        return np.concatenate([np.ascontiguousarray(piece).view(np.uint8).ravel() for piece in pieces])


def put(decoder: Decoder, layout: TokenLayout, block: np.ndarray) -> None:
    """Add the block's tokens behind what the cache holds. A decoder that EdgeKV is not attached to must take states."""
    n = block.nbytes // layout.token_bytes
    if decoder.kv is None:
        decoder.append(layout.state(block, decoder.position), n)
        return
    decoder.kv.tokens.put(0, decoder.position, block, range(n), n, 0)
    decoder.position += n


def taken(decoder: Decoder, layout: TokenLayout, first: int, end: int) -> Iterator[np.ndarray]:
    """Blocks of the tokens at positions `first` to `end`."""
    assert decoder.kv is not None
    cells = decoder.kv.tokens.cells_of(0, end)
    for start in range(first, end, BLOCK_TOKENS):
        some = cells[start : min(end, start + BLOCK_TOKENS)]
        yield decoder.kv.tokens.read(0, some, len(some) * layout.token_bytes)


class Bank:
    """Made-up tokens: each entry normally distributed, around the mean that the same entry has in tokens which the model computed."""

    def __init__(self, layout: TokenLayout, computed: np.ndarray, spread: float = KEY_SPREAD, n: int = BANK_TOKENS):
        """computed: a block of some hundred tokens."""
        rng = np.random.default_rng(0)
        made = []
        for (keys, values), type_k, type_v in zip(layout.parts(computed), layout.types_k, layout.types_v):
            made += [_alike(keys, type_k, spread, n, rng), _alike(values, type_v, 1.0, n, rng)]
        self._parts, self._n = made, n

    def block(self, first: int, n: int) -> np.ndarray:
        """The tokens at positions `first` and on, at most up to where the bank begins again."""
        begin = first % self._n
        return np.concatenate([part[begin : begin + n].ravel() for part in self._parts])

    def blocks(self, first: int, end: int) -> Iterator[np.ndarray]:
        while first < end:
            n = min(BLOCK_TOKENS, end - first, self._n - first % self._n)
            yield self.block(first, n)
            first += n


def _alike(computed: np.ndarray, kind: CacheType, spread: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """uint8 [n, bytes] with the mean and `spread` times the deviation of each column of uint8 [m, bytes]."""
    stored = GGMLQuantizationType[kind.name]
    values = dequantize(computed, stored)
    made = rng.standard_normal((n, values.shape[1]), np.float32) * (spread * values.std(axis=0)) + values.mean(axis=0)
    return quantize(made, stored).view(np.uint8)
