"""Rounds a block's rows of numbers in f16 and packs them: about a third of their bytes.

A *part* is K, or V, of one layer. The values of a channel of K are rounded around their mean in the block, in steps that all channels share, unless
one has large outliers: keys differ little from each other in most channels. The values of a token in V are rounded in steps of its own, for each 64
channels, because tokens that everything attends have small values. Huffman codes of zlib pack the numbers of steps. (After CacheGen,
arXiv:2310.07240, which takes differences from an anchor token and an arithmetic coder: LOG.md has what each is worth here.)

    byte 0      how the part is stored: RAW, ROUNDED_K or ROUNDED_V
    RAW         the rows
    ROUNDED_K   the rows of the first tokens as they are; the channels' means, then their steps (f16, little endian); ranks of their spreads (uint8);
                then a raw deflate stream: int8 [channel by rank, token]
    ROUNDED_V   the tokens' steps, int8 [token, channels / 64], in eighths of octaves; then a raw deflate stream: int8 [token, channel]
"""

import zlib

import numpy as np

from edgekv.prefix_cache.identity import RowLayout

RAW, ROUNDED_K, ROUNDED_V = 0, 1, 2

K_STEP, V_STEP = 0.07, 0.15
"""The step of K as a share of the typical spread of its channels (the geometric mean), and of V as a share of the token's root mean square. Measured
(LOG.md): the predictions behind such rows differ from those behind the rows by no more than stock llama.cpp's do."""

FIRST_RAW = 4
"""Tokens at the beginning of a chain whose K stays as it is: every query attends the first, whose keys are like no others."""

MOST_MORE = 16
"""Bytes that a packed layer has beyond its rows at most."""

_MOST = 127
"""Steps on either side; values with larger outliers have larger steps."""

_GROUP = 64
"""Channels of V that share a token's step, and channels of K that share a table of codes."""

_LEAST = float(np.finfo(np.float16).smallest_subnormal)
_LARGEST = float(np.finfo(np.float16).max)
_LEVEL, _RAW_DEFLATE, _MEMORY = 1, -15, 9
"""Of zlib; this memory gives a table of codes to 32,768 steps."""


class Unpackable(Exception):
    """Raised for bytes that no part packs to."""


def pack_layer(rows: np.ndarray, layout: RowLayout, layer: int, n_tokens: int, begins: bool) -> bytes:
    """Rows of one layer, uint8 [bytes], in f16, rounded and packed. begins: the block begins a chain. Rows that are not finite numbers, or that
    would not shrink, stay as they are."""
    packed = []
    for one, value in _parts(rows, layout, layer, n_tokens):
        small = _pack_v(one) if value else _pack_k(one, min(FIRST_RAW, n_tokens) if begins else 0)
        packed.append(small if small is not None and len(small) <= one.size else bytes([RAW]) + one.tobytes())
    return b"".join(len(one).to_bytes(4, "little") + one for one in packed)


def unpack_layer(packed: memoryview, layout: RowLayout, layer: int, n_tokens: int, begins: bool, out: np.ndarray) -> None:
    """Fill `out`, uint8 [bytes of the layer's rows]. Raises Unpackable for damaged bytes."""
    at = 0
    for rows, value in _parts(out, layout, layer, n_tokens):
        n = int.from_bytes(packed[at : at + 4], "little")
        one, at = packed[at + 4 : at + 4 + n], at + 4 + n
        if len(one) != n or not n:
            raise Unpackable("a part is cut short")
        if one[0] == RAW and n == rows.size + 1:
            rows[:] = np.frombuffer(one[1:], np.uint8).reshape(rows.shape)
        elif one[0] == (ROUNDED_V if value else ROUNDED_K) and rows.shape[1] % 2 == 0:
            _unpack_v(one[1:], rows) if value else _unpack_k(one[1:], min(FIRST_RAW, n_tokens) if begins else 0, rows)
        else:
            raise Unpackable("it is no part")
    if at != len(packed):
        raise Unpackable("bytes are left over")


def _parts(rows: np.ndarray, layout: RowLayout, layer: int, n_tokens: int) -> list[tuple[np.ndarray, bool]]:
    """K and V in the rows of a layer, uint8 [token, bytes] in place, and whether it is V; those that there are."""
    first = n_tokens * layout.k_bytes[layer]
    return [(part.reshape(n_tokens, -1), value) for part, value in ((rows[:first], False), (rows[first:], True)) if len(part)]


def _pack_k(rows: np.ndarray, n_raw: int) -> bytes | None:
    """rows: uint8 [token, bytes]; the first n_raw stay as they are. None: they cannot be rounded."""
    if rows.shape[1] % 2 or len(rows) == n_raw:
        return None
    values = np.ascontiguousarray(rows.view("<f2")[n_raw:].T).astype(np.float32)  # [channel, token]
    if not np.isfinite(values).all():
        return None
    means = values.mean(axis=1).astype("<f2")
    values -= means.astype(np.float32)[:, None]
    outliers = np.abs(values).max(axis=1)
    spreads = np.log2(np.maximum(np.sqrt(np.einsum("ct,ct->c", values, values) / values.shape[1]), _LEAST))
    steps = np.clip(np.maximum(K_STEP * 2 ** spreads.mean(), outliers / (_MOST - 1)), _LEAST, _LARGEST).astype("<f2")
    ranks = np.clip(np.rint(8 * (spreads - spreads.mean())) + 128, 0, 255).astype(np.uint8)
    values /= steps.astype(np.float32)[:, None]
    codes = np.clip(np.rint(values, out=values), -_MOST, _MOST).astype(np.int8)[np.argsort(ranks, kind="stable")]
    return b"".join((bytes([ROUNDED_K]), rows[:n_raw].tobytes(), means.tobytes(), steps.tobytes(), ranks.tobytes(), _deflated(codes, _GROUP)))


def _unpack_k(packed: memoryview, n_raw: int, out: np.ndarray) -> None:
    n_channels, n_tokens = out.shape[1] // 2, len(out) - n_raw
    raw, means, steps, ranks, stream = _split(packed, n_raw * out.shape[1], 2 * n_channels, 2 * n_channels, n_channels)
    out[:n_raw] = np.frombuffer(raw, np.uint8).reshape(n_raw, out.shape[1])
    order = np.argsort(np.frombuffer(ranks, np.uint8), kind="stable")
    values = np.empty((n_channels, n_tokens), np.float32)
    values[order] = _inflated(stream, values.size).reshape(values.shape)
    values *= np.frombuffer(steps, "<f2").astype(np.float32)[:, None]
    values += np.frombuffer(means, "<f2").astype(np.float32)[:, None]
    out[n_raw:].view("<f2")[:] = np.clip(values, -_LARGEST, _LARGEST, out=values).astype("<f2").T


def _pack_v(rows: np.ndarray) -> bytes | None:
    """As `_pack_k`."""
    if rows.shape[1] % 2:
        return None
    values = rows.view("<f2").astype(np.float32).reshape(len(rows), -1, _group_of(rows))  # [token, group, channel]
    if not np.isfinite(values).all():
        return None
    size = np.sqrt(np.einsum("tgc,tgc->tg", values, values) / values.shape[2])
    least = np.maximum(np.maximum(V_STEP * size, np.abs(values).max(axis=2) / (_MOST - 1)), _LEAST)
    steps = np.clip(np.ceil(8 * np.log2(least)), -128, 127).astype(np.int8)
    values /= _octaves(steps)[..., None]
    codes = np.clip(np.rint(values, out=values), -_MOST, _MOST).astype(np.int8)
    return b"".join((bytes([ROUNDED_V]), steps.tobytes(), _deflated(codes, len(codes))))


def _unpack_v(packed: memoryview, out: np.ndarray) -> None:
    shape = len(out), out.shape[1] // 2 // _group_of(out), _group_of(out)
    steps, stream = _split(packed, shape[0] * shape[1])
    values = _inflated(stream, out.size // 2).reshape(shape).astype(np.float32)
    values *= _octaves(np.frombuffer(steps, np.int8).reshape(shape[:2]))[..., None]
    out.view("<f2")[:] = np.clip(values, -_LARGEST, _LARGEST, out=values).astype("<f2").reshape(len(out), -1)


def _group_of(rows: np.ndarray) -> int:
    n_channels = rows.shape[1] // 2
    return _GROUP if n_channels % _GROUP == 0 else n_channels


def _octaves(steps: np.ndarray) -> np.ndarray:
    return np.exp2(steps.astype(np.float32) / 8)


def _deflated(codes: np.ndarray, n_together: int) -> bytes:
    """codes: int8 [n, ...]; so many of the first axis share a table of codes."""
    pack = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW_DEFLATE, _MEMORY, zlib.Z_HUFFMAN_ONLY)
    pieces: list[bytes] = []
    for first in range(0, len(codes), n_together):
        pieces += pack.compress(codes[first : first + n_together].tobytes()), pack.flush(zlib.Z_BLOCK)
    return b"".join((*pieces, pack.flush()))


def _inflated(stream: memoryview, n: int) -> np.ndarray:
    """int8 [n]; never more memory than that, whatever the stream says. Raises Unpackable."""
    unpack = zlib.decompressobj(_RAW_DEFLATE)
    try:
        codes = unpack.decompress(stream, n)
        whole = len(codes) == n and not unpack.decompress(unpack.unconsumed_tail, 1) and unpack.eof and not unpack.unused_data
    except zlib.error:
        raise Unpackable("its codes are damaged") from None
    if not whole:
        raise Unpackable("it has another number of codes")
    return np.frombuffer(codes, np.int8)


def _split(packed: memoryview, *sizes: int) -> list[memoryview]:
    """Pieces of these sizes, and the rest. Raises Unpackable if there are fewer bytes."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(packed[at : at + size])
        at += size
    if len(packed) < at:
        raise Unpackable("a part is cut short")
    return [*pieces, packed[at:]]
