"""The bytes of a block or snapshot outside RAM: a header that says whose they are, checksums (one for each layer), and the payload, or its layers as a
codec rounded and packed them."""

import itertools
import json
import struct
import zlib
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from edgekv.prefix_cache import codec
from edgekv.prefix_cache.blocks import BLOCK_TOKENS, KEY_BYTES, Block, Link, Reading, child_link, snapshot_link
from edgekv.prefix_cache.identity import ModelIdentity, PayloadLayout, RowLayout, SnapshotLayout, begins_chain

MAGIC = b"EDGEKV\x00B"
VERSION = 3
_PREFIX = struct.Struct("<8sIII")  # magic, version, bytes of the JSON text, its CRC-32
_ALIGNED = 64  # the rows begin at a multiple of this
MOST_HEADER_BYTES = 1 << 20
MOST_READ_WITH_BYTES = 32
MOST_ROW_BYTES = 1 << 32
MOST_SNAPSHOT_BYTES = 1 << 40


class Refused(Exception):
    """Raised for bytes that are no usable block."""

    def __init__(self, why: str, damaged: bool):
        super().__init__(why)
        self.damaged = damaged
        """Whether they were a block of this version; other bytes may mean something to others."""


class BlockHeader(Struct, frozen=True, eq=False):
    """The header before the rows."""

    link: Link
    tokens: np.ndarray
    """int32 [n]."""
    root: bytes
    """The root key of the model identity."""
    name: str
    """The model's name, for people."""
    layout: PayloadLayout
    checksums: tuple[int, ...]
    """CRC-32 of the bytes of each layer, or of the snapshot."""
    start: int
    """The offset of the first layer."""
    packed: tuple[int, ...] = ()
    """Bytes of each layer if the codec rounded them."""

    @property
    def n_bytes(self) -> int:
        """Bytes of everything."""
        return int(self.starts()[-1])

    def starts(self) -> np.ndarray:
        """The offset of each layer, and of the end: int64 [layer + 1], in bytes."""
        if self.link.rounded:
            return self.start + np.concatenate([[0], np.cumsum(np.array(self.packed, np.int64))])
        return self.start + self.layout.layer_starts(self.link.n)

    def check(self, root: bytes, link: Link, layout: RowLayout | None, n_bytes: int) -> None:
        """Raises Refused unless this is the header of the block asked for, and n_bytes all of it. Without `layout` the rows may have any layout; a
        caller that hands them to a model must give the model's. A snapshot has its own."""
        if self.root != root or self.link != link or self.link.rounded != link.rounded or not (link.snapshot or layout in (None, self.layout)):
            raise Refused("it is another block than its name says", damaged=True)
        if n_bytes != self.n_bytes:
            raise Refused("it is truncated" if n_bytes < self.n_bytes else "it is longer than its rows", damaged=True)


def encode(block: Block, identity: ModelIdentity, rounded: bool = False) -> tuple[bytes, memoryview]:
    """The header, and all bytes behind it. rounded: as the codec packs the block's rows, which are in f16."""
    layout: PayloadLayout = SnapshotLayout(block.payload.nbytes) if block.link.snapshot else identity.layout
    rows = [block.payload[first:end] for first, end in itertools.pairwise(layout.layer_starts(block.link.n).tolist())]
    if not rounded:
        return _header(block, identity, layout, [zlib.crc32(one.data) for one in rows]), block.payload.data
    assert isinstance(layout, RowLayout), "a snapshot's bytes mean nothing to the store"
    begins = begins_chain(identity.root_key(), block.link.parent)
    layers = [codec.pack_layer(one, layout, layer, block.link.n, begins) for layer, one in enumerate(rows)]
    return _header(block, identity, layout, [zlib.crc32(one) for one in layers], packed=[len(one) for one in layers]), memoryview(b"".join(layers))


def _header(block: Block, identity: ModelIdentity, layout: PayloadLayout, checksums: list[int], **more: list[int]) -> bytes:
    sizes = {"snapshot": layout.n_bytes} if isinstance(layout, SnapshotLayout) else {"k_bytes": layout.k_bytes, "v_bytes": layout.v_bytes}
    text = json.dumps({
        "root": identity.root_key().hex(), "name": identity.name, "parent": block.link.parent.hex(), "key": block.link.key.hex(),
        "reading": int(block.link.reading), "read_with": block.link.read_with.hex(), **sizes,
        "checksums": checksums, **more, "tokens": block.tokens.tolist(),
    }, separators=(",", ":")).encode()
    head = _PREFIX.pack(MAGIC, VERSION, len(text), zlib.crc32(text)) + text
    return head + bytes(-len(head) % _ALIGNED)


def header_bytes(first: bytes) -> int:
    """The number of bytes of the header, by the first 20 or more. Raises Refused."""
    if not MAGIC.startswith(first[: len(MAGIC)]):
        raise Refused("it is not a block of EdgeKV's", damaged=False)
    if len(first) < _PREFIX.size:
        raise Refused("it is truncated", damaged=True)
    _, version, n_text, _ = _PREFIX.unpack_from(first)
    if version != VERSION:
        raise Refused(f"it is of format version {version}, and this EdgeKV writes {VERSION}", damaged=False)
    if n_text > MOST_HEADER_BYTES:
        raise Refused("its header is damaged", damaged=True)
    return -(-(_PREFIX.size + n_text) // _ALIGNED) * _ALIGNED


def decode_header(data: bytes | memoryview) -> BlockHeader:
    """The header at the beginning of `data`, which may go on; it is consistent in itself. Raises Refused."""
    start = header_bytes(bytes(data[: _PREFIX.size]))
    if len(data) < start:
        raise Refused("it is truncated", damaged=True)
    _, _, n_text, checksum = _PREFIX.unpack_from(data)
    text = bytes(data[_PREFIX.size : _PREFIX.size + n_text])
    if zlib.crc32(text) != checksum:
        raise Refused("its header is damaged", damaged=True)
    try:
        said = json.loads(text)
        tokens = np.array(said["tokens"], dtype=np.int32)
        is_snapshot = "snapshot" in said
        layout: PayloadLayout = SnapshotLayout(int(said["snapshot"])) if is_snapshot else RowLayout(
            tuple(map(int, said["k_bytes"])), tuple(map(int, said["v_bytes"])))
        root, parent, key, read_with = (bytes.fromhex(said[name]) for name in ("root", "parent", "key", "read_with"))
        link = Link(key, parent, Reading(said["reading"]), len(tokens), read_with, is_snapshot, rounded="packed" in said)
        packed = tuple(map(int, said.get("packed", ())))
        header = BlockHeader(link, tokens, root, str(said["name"]), layout, tuple(map(int, said["checksums"])), start, packed)
    except Exception:  # anybody who can write to the folder chose the text: endless nesting, endless numbers
        raise Refused("its header says what no block's does", damaged=True) from None
    n_least, n_most = (0, BLOCK_TOKENS - 1) if is_snapshot else (1, BLOCK_TOKENS)
    if tokens.ndim != 1 or not n_least <= len(tokens) <= n_most or len(header.checksums) != layout.n_layers or len(root) != KEY_BYTES:
        raise Refused("its header says what no block's does", damaged=True)
    if not _is_possible(layout) or link.rounded and not _may_pack(layout, len(tokens), packed):
        raise Refused("its header says what no block's does", damaged=True)
    link_like = snapshot_link if is_snapshot else child_link
    if len(read_with) > MOST_READ_WITH_BYTES or link_like(parent, link.reading, tokens, read_with).key != key:
        raise Refused("its key is not that of its tokens", damaged=True)
    return header


def _is_possible(layout: PayloadLayout) -> bool:
    if isinstance(layout, SnapshotLayout):
        return 0 < layout.n_bytes <= MOST_SNAPSHOT_BYTES
    return all(0 <= n <= MOST_ROW_BYTES for n in (*layout.k_bytes, *layout.v_bytes))


def _may_pack(layout: PayloadLayout, n_tokens: int, packed: tuple[int, ...]) -> bool:
    """Whether layers may have so many bytes as the codec packs them: never many more than their rows."""
    if isinstance(layout, SnapshotLayout) or len(packed) != layout.n_layers:
        return False
    return all(0 <= n <= rows + codec.MOST_MORE for n, rows in zip(packed, np.diff(layout.layer_starts(n_tokens)).tolist()))


def read_layers(header: BlockHeader, layers: range, out: np.ndarray, read: Callable[[int, np.ndarray], bool]) -> bool:
    """Fill `out`, uint8 [bytes], with the rows of some layers, verified. `read(start, stored)` fills `stored` with a block's bytes from `start` on; False: it
    cannot. Raises Refused if they are not those that were written."""
    starts = header.starts()
    stored = np.empty(int(starts[layers.stop] - starts[layers.start]), np.uint8) if header.link.rounded else out
    if not read(int(starts[layers.start]), stored):
        return False
    _check(stored, header, layers)
    if header.link.rounded:
        _unpack(stored, header, layers, out)
    return True


def _unpack(stored: np.ndarray, header: BlockHeader, layers: range, out: np.ndarray) -> None:
    """Fill `out` with the rows of some layers, from their bytes as the codec packed them."""
    assert isinstance(header.layout, RowLayout)
    places, starts = (at - at[layers.start] for at in (header.starts(), header.layout.layer_starts(header.link.n)))
    begins = begins_chain(header.root, header.link.parent)
    for layer in layers:
        one, rows = stored.data[places[layer] : places[layer + 1]], out[starts[layer] : starts[layer + 1]]
        try:
            codec.unpack_layer(one, header.layout, layer, header.link.n, begins, rows)
        except codec.Unpackable as error:
            raise Refused(f"the rows of layer {layer} are damaged: {error}", damaged=True) from None


def _check(stored: np.ndarray, header: BlockHeader, layers: range) -> None:
    starts = header.starts()
    first = int(starts[layers.start])
    for layer in layers:
        if zlib.crc32(stored.data[int(starts[layer]) - first : int(starts[layer + 1]) - first]) != header.checksums[layer]:
            raise Refused("the snapshot is damaged" if header.link.snapshot else f"the rows of layer {layer} are damaged", damaged=True)
