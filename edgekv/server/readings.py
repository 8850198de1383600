"""How a context's tokens were read, and which kept rows it takes."""

import hashlib
from typing import NamedTuple

import numpy as np

from edgekv._native.prefix_callbacks import SequenceTokens
from edgekv.common.enums import CacheCodec, KvMode, PromptReading
from edgekv.config import KvOptions
from edgekv.prefix_cache.blocks import Reading, ReadWith
from edgekv.prefix_cache.results import BlockPiece
from edgekv.runtime import cells
from edgekv.runtime.runtime import Runtime
from edgekv.runtime.sampling import sampled_with, sparse_with

_LABELS = {Reading.EXACT: 0, Reading.ROUNDED: cells.ROUNDED, Reading.SAMPLED: cells.SAMPLED, Reading.SPARSE: cells.SPARSE_PROMPT}


def label_of(piece: BlockPiece) -> int:
    """The label of cells with its rows."""
    return _LABELS[piece.reading] | (cells.ROUNDED if piece.block.link.rounded else 0)


def takes_rounded(options: KvOptions, codec: CacheCodec) -> bool:
    """Whether rounded rows serve a context, and its own may be rounded."""
    return codec is CacheCodec.ROUND or codec is CacheCodec.AUTO and options.mode is KvMode.SPARSE


def accepted(options: KvOptions, codec: CacheCodec) -> Reading:
    """The worst reading that a context accepts: the one that it would compute itself, behind rounded rows if it takes them."""
    if options.mode is not KvMode.SPARSE:
        return Reading.ROUNDED if takes_rounded(options, codec) else Reading.EXACT
    return Reading.SPARSE if options.selection.prompts is PromptReading.SPARSE else Reading.SAMPLED


def read_with(options: KvOptions, codec: CacheCodec) -> ReadWith:
    """The settings of tokens that are not read exactly. Those behind rounded rows are found only where these are taken."""
    takes = takes_rounded(options, codec)

    def digest(settings: tuple) -> bytes:
        return hashlib.blake2b(repr((takes, *settings)).encode(), digest_size=8).digest()

    return ReadWith(rounded=digest(()), sampled=digest(sampled_with(options)), sparse=digest(sparse_with(options)), takes_rounded=takes)


class KeptTokens(NamedTuple):
    """The tokens of a sequence that can be kept: up to the first one sampled with earlier settings."""

    cells: np.ndarray
    """uint32 [n]."""
    readings: np.ndarray
    """uint8 [n], of Reading."""
    rounded: np.ndarray
    """bool [n]: the token's rows were rounded by a store."""


def kept_tokens(runtime: Runtime, options: KvOptions, held: SequenceTokens) -> KeptTokens:
    places, labels = runtime.tokens.labelled(held.seq_id, len(held.tokens), held.at)
    earlier = np.flatnonzero(labels & cells.EARLIER)
    n = earlier[0] if len(earlier) else len(places)
    return KeptTokens(places[:n], _readings(runtime, options, labels[:n]), (labels[:n] & cells.ROUNDED) != 0)


def _readings(runtime: Runtime, options: KvOptions, labels: np.ndarray) -> np.ndarray:
    """Readings, uint8 [n], from the labels of the tokens' cells."""
    readings = np.full(len(labels), Reading.EXACT, np.uint8)
    readings[(labels & cells.ROUNDED) != 0] = Reading.ROUNDED
    readings[(labels & cells.SAMPLED) != 0] = Reading.SAMPLED
    readings[(labels & cells.SPARSE_PROMPT) != 0] = Reading.SPARSE
    if options.mode is KvMode.SPARSE and runtime.tokens.on_device:
        np.maximum(readings, Reading.SAMPLED, out=readings)  # a device does not tell which of its steps sampled
    return readings
