"""Tells whether a sparse mode left tokens out. A mode that attended everything finds everything, which says nothing about the mode."""

from edgekv.bench.modes import BenchMode
from edgekv.common.enums import KvMode
from edgekv.common.reports import SelectionReport
from edgekv.runtime.runtime import Runtime

ATTENDED_EVERYTHING = "attended everything"


def was_sparse(mode: BenchMode, selection: SelectionReport, runtime: Runtime, n_decoded: int) -> bool:
    """Whether the passes that `selection` counts were sparse; they ended with `n_decoded` tokens of one sequence. Always True for a mode that
    is not meant to be sparse."""
    kind = KvMode(mode.changes["mode"])
    if kind is KvMode.EVICT:  # a page dropped for all heads is no longer visible
        return left_out(selection) or runtime.memory().n_cells_used < n_decoded
    return kind is not KvMode.SPARSE or left_out(selection)


def left_out(selection: SelectionReport) -> bool:
    """Whether any visible token was left out. Without a selection everything was attended."""
    return selection.n_read < selection.n_visible
