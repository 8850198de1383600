"""The work space of our kernels: the plan against what the library reserves for a prompt and the longest step after it."""

import pytest
from support.contexts import attached

from edgekv.config import KvOptions
from edgekv.models.geometry import open_model
from edgekv.planning.allocations import ContextRequest, Slots

CASES = [("exact", 1, {}), ("exact", 3, {"head_dim": 128, "n_head": 6}), ("sparse", 1, {}), ("sparse", 3, {"head_dim": 128, "n_head": 6}),
         ("sparse", 2, {"head_dim": 72, "n_head": 18}), ("exact", 2, {"kind": "deepseek32", "n_head": 16}),
         ("sparse", 2, {"kind": "deepseek32", "n_head": 16, "n_top_k": 300})]


@pytest.mark.parametrize(("mode", "n_threads", "shape"), CASES)
@pytest.mark.parametrize("n_sequences", [1, 2])
def test_the_plan_counts_what_is_reserved(synthetic, mode, n_threads, shape, n_sequences):
    path, n_ctx = synthetic(n_ctx_train=8192, **shape), 2048
    kv = KvOptions(mode=mode, attention_device="cpu", exact_tokens=0)
    request = ContextRequest(open_model(path), kv, n_ctx, Slots(n_sequences), 1 << 40, n_threads=n_threads)
    parts = {part.name: part.bytes for part in request.parts(n_ctx, kv)}
    with attached(path, kv, n_ctx=n_ctx * n_sequences, n_seq=n_sequences, unified=False, n_threads=n_threads) as (context, runtime):
        for sequence in range(n_sequences):
            for first in range(0, n_ctx - 16, 508):
                context.decode([300] * 508, range(first, first + 508), [sequence] * 508)
        last = range(n_ctx - 16, n_ctx)
        context.decode([300] * 16 * n_sequences, [*last] * n_sequences, [s for s in range(n_sequences) for _ in last])
        taken = runtime.memory()
    for_sparse_prompts = 0.02 if mode == "sparse" else 0  # the plan counts what these would need
    assert taken.workspace_bytes <= parts["work space"] <= (1 + for_sparse_prompts) * taken.workspace_bytes
    assert taken.table_bytes + taken.observation_bytes <= parts["tables"] <= 3 * (taken.table_bytes + taken.observation_bytes)
