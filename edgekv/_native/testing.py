"""Functions for tests: edgekv_testing.h through cffi."""

from typing import Any

from edgekv._native._core import ffi, lib
from edgekv._native.core import Handle


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


def check(handle: Handle) -> Any:
    """Compare every sketch with a rebuilt one, and every slot in the page table with home: an edgekv_check_result."""
    return lib.edgekv_check(handle)
