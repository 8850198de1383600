"""What our kernels need of memory while they work, by formula: the library reserves it when a context first needs it."""

from __future__ import annotations

from edgekv.config import KvOptions
from edgekv.models import Geometry
from edgekv.vocab import MAX_QUERY_TOKENS, KvMode, SketchKind

_VECTOR_BYTES = 64
_ROW_BYTES = 8  # in a list of rows: the cell and its weight
_TILE_ROWS = 64  # of a list, which leave the sum of their values, and their own weights, for each query head
_SHARE_BYTES = 2  # of a cell in a query head's attention
_STRIP_CELLS = 16  # of which mass is observed together
_BLOCK_CELLS, _BLOCK_TOKENS = 64, 16  # of a prompt
_ITEM_ROWS, _ITEM_NUMBERS = 512, 32 * 1024  # of queries of a prompt that a thread takes at once, at most
_PANELS = 4  # of scores

_SPARSE = (KvMode.SPARSE, KvMode.EVICT)


def exact_step_bytes(model: Geometry, il: int, n_cells: int, n_threads: int) -> int:
    """What the longest step of a stream in mode exact needs: for each of its tokens and query heads of a layer the sums and maxima that mass is
    observed by, and in each thread its query and what it came to so far (native: attend/attend.cpp)."""
    rows = MAX_QUERY_TOKENS * model.n_head[il]
    return rows * (8 * -(-n_cells // _STRIP_CELLS) + n_threads * 4 * (model.head_dim_k + model.head_dim_v))


def step_bytes(model: Geometry, il: int, n_cells: int, kind: SketchKind) -> int:
    """What the longest step of a stream in mode sparse leaves between its nodes: for each of its tokens and each KV head of a layer the shares
    of all cells, a list of rows that may name all of them, and what the rows of each tile came to (native: host/select.cpp,
    attend/attend.cpp)."""
    group = model.n_head[il] // model.n_head_kv[il]
    shares = 0 if kind is SketchKind.NONE else _SHARE_BYTES * group
    values = _aligned(4 * model.head_dim_v)
    tile = group * (4 * _TILE_ROWS + values) + _aligned(8 * group)
    return MAX_QUERY_TOKENS * model.n_head_kv[il] * (n_cells * (_ROW_BYTES + shares) + -(-n_cells // _TILE_ROWS) * tile)


def prompt_bytes(model: Geometry, layers: list[int], n_cells: int, kv: KvOptions, n_threads: int) -> int:
    """Scratch of `n_threads` that read a prompt in a context of `n_cells` (native: prompt/prompt.cpp, host/prompt_choice_node.cpp): queries and
    outputs of an item, K and V of a block of cells; where mass is observed, sums and maxima of all blocks; where there are sketches, the
    estimates of all cells, whether prompts are sampled or not."""
    groups = [model.n_head[il] // model.n_head_kv[il] for il in layers]
    return n_threads * max((_item_bytes(model, group, n_cells, kv) for group in groups), default=0)


def _item_bytes(model: Geometry, group: int, n_cells: int, kv: KvOptions) -> int:
    block_rows = _BLOCK_TOKENS * group
    rows = block_rows * max(1, min(_ITEM_ROWS, _ITEM_NUMBERS // model.head_dim_k) // block_rows)
    channels = model.head_dim_k + model.head_dim_v
    n_blocks = -(-n_cells // _BLOCK_CELLS)
    n_bytes = 4 * ((rows + _BLOCK_CELLS) * channels + 2 * rows + (_PANELS + 1) * _BLOCK_CELLS * _BLOCK_TOKENS)
    if kv.mode in _SPARSE:
        n_bytes += 4 * n_blocks * block_rows * (_BLOCK_CELLS // _STRIP_CELLS + 1)
        if kv.mode is KvMode.SPARSE and kv.selection.sketch is not SketchKind.NONE:
            n_bytes += n_blocks * (_BLOCK_CELLS * _SHARE_BYTES + 8) * group + n_blocks * 32
    return n_bytes


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // _VECTOR_BYTES) * _VECTOR_BYTES
