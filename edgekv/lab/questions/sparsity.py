"""Tells whether a sparse mode left something out. A mode that attended everything finds everything, and that says nothing about it."""

from edgekv.lab.engine.modes import BenchMode
from edgekv.live.runtime import Runtime
from edgekv.reports import SelectionReport
from edgekv.vocab import KvMode

ATTENDED_EVERYTHING = "attended everything"


def was_sparse(mode: BenchMode, selection: SelectionReport, runtime: Runtime, n_decoded: int) -> bool:
    """Of the passes that `selection` counts, which ended with `n_decoded` tokens of one sequence. True for a mode that is not sparse by
    its nature."""
    kind = KvMode(mode.changes["mode"])
    if kind is KvMode.EVICT:  # what was dropped for all heads is not visible any more
        return left_out(selection) or runtime.memory().n_cells_used < n_decoded
    return kind is not KvMode.SPARSE or left_out(selection)


def left_out(selection: SelectionReport) -> bool:
    """Whether anything visible was left out. Without a selection everything was attended."""
    return selection.n_read < selection.n_visible
