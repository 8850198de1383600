"""Gather: pages from home into slots. The specification of edgekv_gather_pages in move_pages.cuh."""

import numpy as np
from msgspec import Struct

_FIELDS = ("k", "v", "k_stride_stream", "k_stride_cell", "k_stride_head", "v_stride_stream", "v_stride_cell", "v_stride_head",
               "k_row_bytes", "v_row_bytes", "v_offset", "n_heads")
LAYER = np.dtype([(name, np.uint64) for name in _FIELDS])
"""One edgekv_device_layer: device addresses of a layer's home, and the layout of its pages in a slot."""

MOVE = np.dtype([("layer", np.int32), ("head", np.int32), ("page", np.int32), ("slot", np.int32)])
"""One edgekv_move."""


class Places(Struct, frozen=True):
    """The places of a context's pages, as device addresses."""

    layers: int
    """Address of LAYER [n_layers]."""
    n_layers: int
    arena: int
    slot_bytes: int
    page_tokens: int
    pages_per_stream: int
    n_cells: int
    """Cells of a stream; its last page may have fewer than page_tokens."""


def gather_pages(view, places: Places, moves: np.ndarray) -> None:
    """Copy pages (MOVE [n]) from home into their slots: a head's K rows without gaps, its V rows at v_offset. Where the stream's last page is
    short, the end of the slot stays as it was. Moves of heads that the layer does not have are left out.

    view(address, dtype, shape): a writable array over memory.
    """
    layers = view(places.layers, LAYER, (places.n_layers,))
    for move in moves:
        layer = {name: int(layers[move["layer"]][name]) for name in _FIELDS}
        if move["head"] >= layer["n_heads"]:
            continue
        stream, page = divmod(int(move["page"]), places.pages_per_stream)
        first = page * places.page_tokens
        n = min(places.page_tokens, places.n_cells - first)
        slot = places.arena + int(move["slot"]) * places.slot_bytes
        for kind, offset in (("k", 0), ("v", layer["v_offset"])):
            stride, row_bytes = layer[f"{kind}_stride_cell"], layer[f"{kind}_row_bytes"]
            home = layer[kind] + stream * layer[f"{kind}_stride_stream"] + int(move["head"]) * layer[f"{kind}_stride_head"] + first * stride
            if n > 0:
                cells = view(home, np.uint8, ((n - 1) * stride + row_bytes,))
                cells = np.lib.stride_tricks.as_strided(cells, (n, row_bytes), (stride, 1))
                view(slot + offset, np.uint8, (n * row_bytes,)).reshape(n, row_bytes)[...] = cells
