"""How far apart the snapshots of a long prompt are."""

from edgekv._native import http_server as native
from edgekv.models.geometry import Geometry
from edgekv.prefix_cache.blocks import BLOCK_TOKENS
from edgekv.runtime.runtime import Runtime

LEAST_SPACING = 512
"""Fewest tokens between two snapshots in the middle of a prompt."""
MOST_SHARE = 0.05
"""Most time of the copy, as a share of the time that reading these tokens takes."""
COPY_RATE = 1e9
"""Bytes that one thread copies per second, a low estimate."""


def snapshot_spacing(model: Geometry, runtime: Runtime) -> int:
    """Tokens between two snapshots in the middle of a long prompt. Their rows take at least a snapshot's bytes, so that the store at most
    doubles, and reading them takes 20 times as long as the snapshot's copy."""
    types = runtime.options.cache.kinds
    n_bytes = model.snapshot_bytes(*types)
    row_bytes = model.row_bytes(*types)
    by_bytes = n_bytes / row_bytes if row_bytes else 0.0  # without rows every layer slides or keeps a state
    reading_s = native.reading_s(0, LEAST_SPACING) / LEAST_SPACING  # 0: no prompt was read yet
    by_time = n_bytes / COPY_RATE / MOST_SHARE / reading_s if reading_s > 0 else 0.0
    wanted = max(LEAST_SPACING, by_bytes, by_time)
    return -(-int(wanted) // BLOCK_TOKENS) * BLOCK_TOKENS
