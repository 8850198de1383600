"""Memory of sketches becomes resident where there are tokens, and nowhere else."""

import os
from pathlib import Path

import numpy as np
from support.contexts import Context, attached

from edgekv.config import KvOptions
from edgekv.live.runtime import Runtime

import llama_cpp

N_CTX = 1 << 17
N = 200
SPARSE = {"mode": "sparse", "exact_tokens": 0, "policy": "none", "kv_budget": 0}


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read(context: Context, seq: int = 0) -> None:
    at = np.arange(N)
    context.decode(260 + at % 90, at, [seq] * N)
    context.decode([270], [N], [seq])


def sketched(run: Runtime, before: int) -> float:
    """Bytes that became resident since `before`, as a share of all sketches."""
    return (resident() - before) / run.memory().sketch_bytes


def test_groups_without_tokens_are_not_touched(synthetic):
    with attached(synthetic("llama", head_dim=128, n_ctx_train=N_CTX), KvOptions(mode="exact"), n_ctx=N_CTX, n_seq=2, unified=False) as (context, run):
        read(context)  # all other memory is resident by now
        before = resident()
        run.configure(KvOptions(**SPARSE))
        assert run.memory().sketch_bytes > 16 << 20
        context.decode([271], [N + 1], [0])
        assert sketched(run, before) < 0.2, "the first ubatch in mode sparse"
        llama_cpp.llama_memory_clear(context.memory, True)
        before = resident()
        read(context)
        assert sketched(run, before) < 0.2, "a memory that was cleared"
        llama_cpp.llama_memory_seq_cp(context.memory, 0, 1, -1, -1)
        before = resident()
        context.decode([272], [N + 1], [1])
        assert sketched(run, before) < 0.2, "a copy between streams"
        assert run.selection(1).n_selections > 0
