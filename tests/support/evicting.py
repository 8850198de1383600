"""A context in mode evict, a sequence of it, and the pages that its heads attend."""

import numpy as np
from support.contexts import Context, dropped

from edgekv._native import paging as native
from edgekv.config import KvOptions
from edgekv.runtime.runtime import Runtime

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place

ONE = dict(n_seq=1, n_batch=128, n_ubatch=128)
TOLERANCE = 1e-3
"""The bound of one kernel from another on the tiny models, in nats; attending a dropped page is a thousand times as far away."""


def evict(keep: int = 512, **more) -> KvOptions:
    return KvOptions(mode="evict", **{"evict_to": keep, "policy": "anchor+recent", "keep_rows": True, **more})


class Chat:
    """One sequence of a context, fed with random tokens."""

    def __init__(self, context: Context, run: Runtime | None, seed: int = 0, seq_id: int = 0):
        self.context, self.run, self.seq_id, self.position = context, run, seq_id, 0
        self.rng = np.random.default_rng(seed)

    def tokens(self, n: int) -> list[int]:
        return self.rng.integers(260, 350, n).tolist()

    def feed(self, tokens: list[int]) -> np.ndarray:
        n = len(tokens)
        logits = self.context.decode(tokens, range(self.position, self.position + n), [self.seq_id] * n)
        self.position += n
        return logits

    def rewind(self, position: int) -> None:
        assert llama_cpp.llama_memory_seq_rm(self.context.memory, self.seq_id, position, -1)
        self.position = position

    @property
    def stream(self) -> int:
        return self.run.cells.stream_of(self.seq_id)

    def positions(self) -> set[int]:
        return set(self.run.cells.stream(self.stream).positions.tolist()) - {-1}


def attended(run: Runtime, row: int, head: int) -> set[int]:
    return set((native.last_rows(run._native_handle(), row, head)[0] // 16).tolist())


def check_rows(run: Runtime, whole_pages: bool = True) -> None:
    """What a layer attends is there, and of what it dropped nothing is, if the rows of a page fill whole pages of the system. A layer's heads drop
    together."""
    gone = dropped(run)
    assert (gone == gone[:, :1]).all(), "a layer's heads drop together"
    by_stream = gone[:, 0].reshape(len(gone), run.cells.n_stream, -1).repeat(16, axis=2)[:, :, : run.cells.n_cells]
    for stream in range(run.cells.n_stream):
        used = run.cells.stream(stream).positions >= 0
        for il, of_layer in enumerate(by_stream[:, stream]):
            there = np.array(run.cells.keys(il)[stream]).view(np.uint8).reshape(run.cells.n_cells, -1).any(axis=1)
            assert there[used & (of_layer == 0)].all(), f"stream {stream}, layer {il}"
            assert not whole_pages or not there[used & (of_layer != 0)].any(), f"stream {stream}, layer {il}"
