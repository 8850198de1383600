"""The copies of pages, against plain slices."""

import numpy as np
import pytest
from support.array_libraries import address_of, on

from edgekv.arrays.move import LAYER, MOVE, Places
from edgekv.arrays.ops import Ops


def homes(rng: np.random.Generator, n_stream: int, n_cells: int, n_heads: int, row_bytes: tuple[int, int]) -> list[np.ndarray]:
    """K and V of a row: uint8 [stream, cell, head, byte]."""
    return [rng.integers(0, 256, (n_stream, n_cells, n_heads, n), dtype=np.uint8) for n in row_bytes]


@pytest.mark.parametrize(("row_bytes", "n_cells", "page_tokens"), [
    ((128, 128), 256, 16), ((256, 192), 113, 16), ((34, 136), 577, 32), ((272, 102), 113, 16), ((36, 68), 256, 16), ((72, 256), 577, 32)])
def test_gather(ops: Ops, row_bytes: tuple[int, int], n_cells: int, page_tokens: int):
    """f16, q8_0 and q4_0 rows of several head sizes, streams, and a last page that has fewer cells."""
    rng = np.random.default_rng(n_cells)
    n_rows, n_stream, n_heads = 2, 2, 3
    pages_per_stream, v_offset = -(-n_cells // page_tokens), page_tokens * row_bytes[0]
    slot_bytes = -(-(v_offset + page_tokens * row_bytes[1]) // 64) * 64
    home = [homes(rng, n_stream, n_cells, n_heads, row_bytes) for _ in range(n_rows)]
    there = [[pinned(ops, array) for array in row] for row in home]
    rows = np.zeros(n_rows, LAYER)
    for row, arrays in zip(rows, there):
        for kind, (_, address), array in zip("kv", arrays, home[0]):
            row[kind] = address
            row[f"{kind}_stride_stream"], row[f"{kind}_stride_cell"], row[f"{kind}_stride_head"] = array.strides[:3]
            row[f"{kind}_row_bytes"] = array.shape[3]
    rows["v_offset"], rows["n_heads"] = v_offset, (n_heads, n_heads - 1)

    n_slots = 40
    moves = np.zeros(30, MOVE)
    moves["layer"], moves["head"] = rng.integers(0, n_rows, 30), rng.integers(0, n_heads, 30)
    moves["page"], moves["slot"] = rng.integers(0, n_stream * pages_per_stream, 30), rng.permutation(n_slots)[:30]
    moves["page"][:2] = pages_per_stream - 1, 2 * pages_per_stream - 1
    expected = np.full((n_slots, slot_bytes), 7, np.uint8)
    for row, head, page, slot in moves.tolist():
        if head < rows["n_heads"][row]:
            stream, first = page // pages_per_stream, page % pages_per_stream * page_tokens
            for offset, array in zip((0, v_offset), home[row]):
                cells = array[stream, first : first + page_tokens, head].reshape(-1)
                expected[slot, offset : offset + len(cells)] = cells

    arena, described = on(ops, np.full((n_slots, slot_bytes), 7, np.uint8)), on(ops, rows.view(np.uint64))
    places = Places(address_of(described), n_rows, address_of(arena), slot_bytes, page_tokens, pages_per_stream, n_cells)
    side = ops.side_stream()
    with ops:
        side.wait_for(ops.ubatch_stream.record())
    ops.gather(places, moves, side)
    done = side.record()
    done.wait()
    assert done.done()
    np.testing.assert_array_equal(ops.download(arena), expected)


def pinned(ops: Ops, array: np.ndarray) -> tuple[object, int]:
    """(the owner of the memory, the address of a host copy that kernels reach)."""
    if not hasattr(ops.xp, "cuda"):
        return array, array.ctypes.data
    memory = ops.xp.cuda.alloc_pinned_memory(array.nbytes)
    copy = np.frombuffer(memory, np.uint8, array.nbytes)
    copy[:] = array.reshape(-1)
    return memory, copy.ctypes.data
