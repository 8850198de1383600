"""Mode evict with a resolution: a head reads a sample of the pages that it has not dropped."""

import numpy as np
import pytest
from support.contexts import attached, dropped
from support.decoding import kld
from support.evicting import ONE, TOLERANCE, Chat, evict

from edgekv._native import testing
from edgekv.config import KvOptions

ALL = 1e9
"""A resolution at which every token is read for certain."""
KEPT = dict(policy="ema+anchor+recent", split="uniform", recent_tokens=32, exact_tokens=0)


def rows(run, row: int, head: int) -> tuple[set[int], np.ndarray]:
    cells, weights = run.last_rows(row, head)
    return set(cells.tolist()), weights


class Kept:
    """The cells that heads keep at a step, seen before it: what they have not dropped, and the pages that it stores in."""

    def __init__(self, run):
        cells = run.cells.stream()
        self._run, self._gone, self._used, self._now = run, dropped(run), np.flatnonzero(cells.positions >= 0), cells.now
        self.any_dropped = bool(self._gone.any())

    def cells(self, row: int, head: int) -> set[int]:
        stored = np.unique(self._run.cells.stream().changed_since(self._now) // 16)
        used = np.union1d(self._used, (16 * stored[:, None] + np.arange(16)).reshape(-1))
        gone = self._gone[row, head].copy()
        gone[stored] = 0
        return set(used[gone[used // 16] == 0].tolist())


@pytest.mark.parametrize(("kind", "bounded", "types"), [
    ("llama", False, {}), ("llama", True, {}), ("llama", False, {"type_k": 8, "type_v": 8}), ("gemma2", False, {}), ("gpt-oss", False, {})])
def test_at_the_finest_resolution_all_that_is_kept_is_read(synthetic, kind, bounded, types):
    """Behind five times what is kept, step by step and in batches: the logits of mode evict without a resolution, while pages are freed,
    filled again and dropped by layers."""
    path, sampled, whole = synthetic(kind), evict(512, **KEPT, sample_budget=ALL), evict(512, **KEPT)
    first = (sampled, whole) if bounded else (KvOptions(mode="exact"),) * 2
    with attached(path, first[0], n_ctx=4096, **ONE, **types) as (context, run), attached(path, first[1], n_ctx=4096, **ONE, **types) as (
            other, plain):
        run.configure(sampled), plain.configure(whole)
        ours, theirs = Chat(context, run), Chat(other, plain)
        n_compared, n_hooked = 0, sum(layer.hooked for layer in run.layers)
        for n in (*[128] * 5, 100, *[1] * 35, 128, 5, 16, *[128] * 10, *[1] * 35, 3, 128, *[1] * 5):
            tokens = ours.tokens(n)
            assert kld(theirs.feed(tokens), ours.feed(tokens)).max() < TOLERANCE
            for row in range(n_hooked if n == 1 else 0):
                (cells, weights), (expected, _) = rows(run, row, 0), rows(plain, row, 0)
                if expected:  # else no head had dropped a page
                    assert (weights == 1).all() and cells == expected
                    n_compared += 1
            assert n == 1 or testing.check(run._native_handle()).n_groups_wrong == 0
        # a model with one such layer frees what that layer does not keep
        assert (n_compared > 20) == (run.stats.n_dropped > 0) == (n_hooked > 1) and run.stats.n_freed == plain.stats.n_freed > 0


def test_a_sample_is_of_what_is_kept(synthetic):
    path = synthetic("llama", n_ctx_train=8192)
    with attached(path, KvOptions(mode="exact"), n_ctx=4096, **ONE) as (context, run), attached(
            path, KvOptions(mode="exact"), n_ctx=4096, **ONE) as (other, plain):
        run.configure(evict(2560, **KEPT, sample_budget=300)), plain.configure(evict(2560, **KEPT))
        ours, theirs = Chat(context, run), Chat(other, plain)
        for _ in range(24):
            tokens = ours.tokens(128)
            assert kld(theirs.feed(tokens), ours.feed(tokens)).max() < TOLERANCE, "a prompt reads all that is kept"
        for _ in range(5):
            keeps = Kept(run)
            ours.feed(ours.tokens(1))
            for head in range(run.layers[1].n_head_kv):
                cells, weights = rows(run, 1, head)
                kept = keeps.cells(1, head)
                assert cells < kept and (weights >= 1).all() and (weights > 1).any()
                newest = np.flatnonzero(run.cells.stream().positions > ours.position - 20)
                assert set(newest.tolist()) <= cells
        assert keeps.any_dropped and plain.memory().sketch_bytes == 0 < run.memory().sketch_bytes


def test_short_views_are_read_whole(synthetic):
    """As in mode sparse, of up to `exact_tokens` cells, though heads have dropped pages."""
    with attached(synthetic("llama"), KvOptions(mode="exact"), n_ctx=1024, **ONE) as (context, run):
        run.configure(evict(512, **{**KEPT, "exact_tokens": 1024}, sample_budget=10))
        chat = Chat(context, run)
        for n in (*[128] * 6, *[1] * 20):
            chat.feed(chat.tokens(n))
        keeps = Kept(run)
        chat.feed(chat.tokens(1))
        cells, weights = rows(run, 0, 0)
        kept = keeps.cells(0, 0)
        assert keeps.any_dropped and cells <= kept and len(kept - cells) < 16 and (weights == 1).all()
