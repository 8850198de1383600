"""Norms of keys by page, against a plain loop, through changes of the cells."""

import numpy as np
import pytest
from support.contexts import attached
from support.double import as_values

from edgekv.config import KvOptions
from edgekv.runtime.key_norms import KeyNorms

import llama_cpp

OPTIONS = KvOptions(mode="sparse", sketch="none", exact_tokens=0, policy="ema+anchor+recent", plan_every=1)


def plain(run, shape) -> np.ndarray:
    norms = np.zeros(shape.axes)
    for row, layer in enumerate([il for il, report in enumerate(run.layers) if report.hooked]):
        rows = run.cells.keys(layer)
        for stream in range(shape.n_streams):
            positions = run.cells.stream(stream).positions
            for page in range(shape.pages_per_stream):
                cells = [c for c in range(page * shape.page_tokens, min((page + 1) * shape.page_tokens, len(positions))) if positions[c] >= 0]
                for head in range(rows.shape[2]):
                    values = [rows[stream, c, head] for c in cells]
                    values = [as_values(v) for v in values]
                    if values:
                        found = np.mean([np.sqrt((np.float64(v) ** 2).sum()) for v in values])
                        norms[row, head, stream * shape.pages_per_stream + page] = found
    return norms


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("unified", [True, False])
def test_norms_follow_the_cells(synthetic, kind: str, unified: bool):
    options = OPTIONS.with_(type_k=kind, type_v=kind)
    number = options.cache.type_k.ggml_type
    with attached(synthetic(), options, n_ctx=512, n_seq=2, unified=unified, type_k=number, type_v=number) as (context, run):
        shape = run._tiering.shape
        context.decode(np.arange(100), np.arange(100), [0] * 100)
        followed = KeyNorms(run._native_handle(), shape)
        followed.update(np.flatnonzero(run.cells.stream(0).positions[:: shape.page_tokens] >= 0))
        np.testing.assert_allclose(followed.values, plain(run, shape), rtol=1e-4, atol=1e-5)

        changed: list[np.ndarray] = []
        seen = run._observation.read
        run._observation.read = lambda: (changed.append((found := seen()).changed.copy()), found)[1]
        context.decode([7] * 40, np.arange(40), [1] * 40)
        llama_cpp.llama_memory_seq_rm(context.memory, 0, 20, 60)
        context.decode([3], [100], [0])
        assert changed
        for pages in changed:
            followed.update(pages)
        np.testing.assert_allclose(followed.values, plain(run, shape), rtol=1e-4, atol=1e-5)
        assert (followed.values == 0).any()
