"""Functions for tests: edgekv_testing.h through cffi."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edgekv._native._core import ffi, lib
from edgekv._native.core import Handle, _check
from edgekv.arrays.sample import GROUP_CELLS


def prompt_blocks(handle: Handle) -> tuple[int, int]:
    """Blocks of 64 cells that sparse prompts saw since the context was attached, and those that they attended."""
    seen, attended = ffi.new("int64_t *"), ffi.new("int64_t *")
    lib.edgekv_get_prompt_blocks(handle, seen, attended)
    return seen[0], attended[0]


def cells_looked(handle: Handle) -> int:
    """Cells that were looked at for changes since the context was attached."""
    return lib.edgekv_cells_looked(handle)


def throw_in(n: int) -> None:
    """Let the n-th call from now on that may ask for memory find none; 0: no call does."""
    lib.edgekv_throw_in(n)


def use_products(use: bool | None) -> int:
    """Let graphs that are built from now on multiply weights in our kernels, or in ggml's; None: as was measured on this machine. Returns how many
    products ours have made in this process."""
    return lib.edgekv_use_products(2 if use is None else int(use))


def leave_whole_layers(handle: Handle) -> None:
    """Leave layers that EdgeKV attends whole in every mode to stock nodes, as a device does. Call it while nothing decodes."""
    lib.edgekv_leave_whole_layers(handle)


@dataclass(frozen=True)
class NativeCheck:
    n_groups_wrong: int
    n_groups: int
    n_slots_wrong: int
    n_slots: int


def check(handle: Handle) -> NativeCheck:
    """Compare every sketch with a rebuilt one, and every slot in the page table with home."""
    out = lib.edgekv_check(handle)
    return NativeCheck(out.n_groups_wrong, out.n_groups, out.n_slots_wrong, out.n_slots)


class Draw(NamedTuple):
    """What the offsets of walks follow from, and the number of cells up to which a token reads all that it sees."""

    positions: np.ndarray
    """int32 [cell] of the cells."""
    turn: int
    """The token's `page_turn`."""
    exact_tokens: int = 0


def sample(shares: np.ndarray, tops: np.ndarray, sums: np.ndarray, visible: np.ndarray, certain: np.ndarray, resolution: float,
           draw: Draw, isa: int = 0) -> tuple[np.ndarray, np.ndarray, int, float]:
    """Sampling for one query token and KV head, by the kernel of an instruction set: `edgekv.arrays.sample` in native code.

    Args:
        shares: uint16 [query head, cell], cells in groups of GROUP_CELLS: exp(logit - top of the group), the upper half of a float32.
        tops, sums: float32 [query head, group]: the largest logit of the group, and the sum of its exponentials.
        visible, certain: bool [cell]: what the token sees, and what of it is read in any case.

    Returns int32 [n] cells, ascending, float32 [n] their weights, how many of them were certain, and `resolution` times the estimated share
    of the attention on what was not read.
    """
    shares = np.ascontiguousarray(shares, np.uint16)
    tops, sums = (np.ascontiguousarray(array, np.float32) for array in (tops, sums))
    group, n_cells = shares.shape
    sight = np.ascontiguousarray(np.stack([_bits(visible), _bits(certain)], axis=1))
    positions = np.ascontiguousarray(draw.positions, np.int32)
    rows, weights = np.zeros(n_cells, np.int32), np.zeros(n_cells, np.float32)
    args = ffi.new("edgekv_sample_args *", {
        "n_groups": n_cells // GROUP_CELLS, "group": group, "shares": ffi.from_buffer("uint16_t *", shares),
        "tops": ffi.from_buffer("float *", tops), "sums": ffi.from_buffer("float *", sums), "sight": ffi.from_buffer("uint64_t *", sight),
        "resolution": resolution, "exact_tokens": draw.exact_tokens, "positions": ffi.from_buffer("int32_t *", positions), "turn": draw.turn,
        "rows": ffi.from_buffer("int32_t *", rows), "weights": ffi.from_buffer("float *", weights)})
    _check(lib.edgekv_sample(args, isa))
    return rows[: args.n_rows], weights[: args.n_rows], args.n_certain, args.missed


def _bits(cells: np.ndarray) -> np.ndarray:
    """bool [cell] as uint64 [group]: cell c of a group is bit c."""
    return np.packbits(np.asarray(cells, bool), bitorder="little").view("<u8").astype(np.uint64)
