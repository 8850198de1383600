"""The bytes of a block or snapshot outside RAM: a header that says whose they are, checksums (one for each layer), and the payload."""

import itertools
import json
import struct
import zlib
from dataclasses import dataclass

import numpy as np

from edgekv.store.blocks import BLOCK_TOKENS, KEY_BYTES, Block, Link, Reading, child_link, snapshot_link
from edgekv.store.identity import ModelIdentity, PayloadLayout, RowLayout, SnapshotLayout

MAGIC = b"EDGEKV\x00B"
VERSION = 2
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


@dataclass(frozen=True, eq=False)
class BlockHeader:
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
    """CRC-32 of the rows of each layer, or of the snapshot."""
    start: int
    """The offset of the rows."""

    @property
    def n_bytes(self) -> int:
        """Bytes of all rows."""
        return self.start + self.layout.block_bytes(self.link.n)

    def check(self, root: bytes, link: Link, layout: RowLayout | None, n_bytes: int) -> None:
        """Raises Refused unless this is the header of the block asked for, and n_bytes all of it. Without `layout` the rows may have any layout; a
        caller that hands them to a model must give the model's. A snapshot has its own."""
        if self.root != root or self.link != link or not (link.snapshot or layout in (None, self.layout)):
            raise Refused("it is another block than its name says", damaged=True)
        if n_bytes != self.n_bytes:
            raise Refused("it is truncated" if n_bytes < self.n_bytes else "it is longer than its rows", damaged=True)


def encode_header(block: Block, identity: ModelIdentity) -> bytes:
    """All bytes before the payload."""
    layout: PayloadLayout = SnapshotLayout(block.payload.nbytes) if block.link.snapshot else identity.layout
    sizes = {"snapshot": layout.n_bytes} if isinstance(layout, SnapshotLayout) else {"k_bytes": layout.k_bytes, "v_bytes": layout.v_bytes}
    text = json.dumps({
        "root": identity.root_key().hex(), "name": identity.name, "parent": block.link.parent.hex(), "key": block.link.key.hex(),
        "reading": int(block.link.reading), "read_with": block.link.read_with.hex(), **sizes,
        "checksums": layer_checksums(block.payload, layout, block.link.n), "tokens": block.tokens.tolist(),
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
        link = Link(key, parent, Reading(said["reading"]), len(tokens), read_with, is_snapshot)
        header = BlockHeader(link, tokens, root, str(said["name"]), layout, tuple(map(int, said["checksums"])), start)
    except Exception:  # anybody who can write to the folder chose the text: endless nesting, endless numbers
        raise Refused("its header says what no block's does", damaged=True) from None
    n_least, n_most = (0, BLOCK_TOKENS - 1) if is_snapshot else (1, BLOCK_TOKENS)
    if tokens.ndim != 1 or not n_least <= len(tokens) <= n_most or len(header.checksums) != layout.n_layers or len(root) != KEY_BYTES:
        raise Refused("its header says what no block's does", damaged=True)
    if not _is_possible(layout):
        raise Refused("its header says what no block's does", damaged=True)
    link_like = snapshot_link if is_snapshot else child_link
    if len(read_with) > MOST_READ_WITH_BYTES or link_like(parent, link.reading, tokens, read_with).key != key:
        raise Refused("its key is not that of its tokens", damaged=True)
    return header


def _is_possible(layout: PayloadLayout) -> bool:
    if isinstance(layout, SnapshotLayout):
        return 0 < layout.n_bytes <= MOST_SNAPSHOT_BYTES
    return all(0 <= n <= MOST_ROW_BYTES for n in (*layout.k_bytes, *layout.v_bytes))


def decode(data: np.ndarray, root: bytes, link: Link, layout: RowLayout | None = None) -> Block:
    """The block in `data` (uint8 [n]), of which it is a view. Raises Refused unless it is exactly the one asked for, and all of it."""
    header = decode_header(data.data)
    header.check(root, link, layout, len(data))
    payload = data[header.start :]
    check_layers(payload, header, range(len(header.checksums)))
    payload.flags.writeable = False
    return Block(header.link, header.tokens, payload)


def check_layers(rows: np.ndarray, header: BlockHeader, layers: range) -> None:
    """Raises Refused if the rows of one of the layers are not those that were written. `rows`: of these layers, uint8 [bytes]."""
    starts = header.layout.layer_starts(header.link.n)
    first = int(starts[layers.start])
    for layer in layers:
        if zlib.crc32(rows.data[int(starts[layer]) - first : int(starts[layer + 1]) - first]) != header.checksums[layer]:
            raise Refused("the snapshot is damaged" if header.link.snapshot else f"the rows of layer {layer} are damaged", damaged=True)


def layer_checksums(payload: np.ndarray, layout: PayloadLayout, n_tokens: int) -> list[int]:
    """CRC-32 of each layer's rows: with zlib several times as fast as BLAKE2, and it shows the damage that disks and memory do."""
    starts = layout.layer_starts(n_tokens).tolist()
    return [zlib.crc32(payload.data[start:end]) for start, end in itertools.pairwise(starts)]
