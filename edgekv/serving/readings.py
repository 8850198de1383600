"""How the tokens of a context were read, and what it accepts of a store."""

import hashlib

import numpy as np

from edgekv._native.prefix_callbacks import SequenceTokens
from edgekv.live import cells
from edgekv.live.runtime import Runtime
from edgekv.live.sampling import sampled_with, sparse_with
from edgekv.store.blocks import Reading, ReadWith
from edgekv.vocab import KvMode, PromptReading


def accepted(runtime: Runtime) -> Reading:
    """The worst reading that a context accepts: the one that it would compute itself."""
    if runtime.mode is not KvMode.SPARSE:
        return Reading.EXACT
    return Reading.SPARSE if runtime.options.selection.prompts is PromptReading.SPARSE else Reading.SAMPLED


def current_settings(runtime: Runtime) -> ReadWith:
    """Of what is read from now on."""
    def digest(settings: tuple) -> bytes:
        return hashlib.blake2b(repr(settings).encode(), digest_size=8).digest()

    options = runtime.options
    return ReadWith(b"", digest(sampled_with(options)), digest(sparse_with(options)))


def held_places(runtime: Runtime, held: SequenceTokens) -> tuple[np.ndarray, np.ndarray]:
    """Cells of a sequence's tokens, uint32 [n], and their readings, uint8 [n] of Reading; up to the first token sampled with earlier settings."""
    places = runtime.tokens.cells_of(held.seq_id, len(held.tokens), held.at)
    labels = runtime.tokens.labels(held.seq_id, places)
    earlier = np.flatnonzero(labels & cells.EARLIER)
    n = earlier[0] if len(earlier) else len(places)
    return places[:n], readings_of(runtime, labels[:n])


def readings_of(runtime: Runtime, labels: np.ndarray) -> np.ndarray:
    """Readings, uint8 [n], from the labels of the tokens' cells."""
    readings = np.full(len(labels), Reading.EXACT, np.uint8)
    readings[(labels & cells.SAMPLED) != 0] = Reading.SAMPLED
    readings[(labels & cells.SPARSE_PROMPT) != 0] = Reading.SPARSE
    if runtime.mode is KvMode.SPARSE and runtime.tokens.on_device:
        np.maximum(readings, Reading.SAMPLED, out=readings)  # a device does not tell which of its steps sampled
    return readings
