"""Sparse prompts: the blocks that they attend, their cost, and their labels."""

import numpy as np
import pytest
from support.contexts import attached
from support.decoding import kld

from edgekv._native import testing
from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions

import llama_cpp

DEPTH, CHUNK = 3072, 320
SIZES = {"n_ctx": 4096, "n_seq": 1, "n_threads": 2}
SPARSE = {"mode": "sparse", "policy": "none", "prompts": "sparse"}


def tokens(n: int) -> np.ndarray:
    return np.random.default_rng(3).integers(260, 350, n)


def read(context, first: int, end: int) -> np.ndarray:
    return context.read(tokens(end), first, end)


def blocks(run) -> tuple[int, int]:
    return testing.prompt_blocks(run._handle)


def chunk_behind(path, options: KvOptions) -> tuple[np.ndarray, tuple[int, int], np.ndarray]:
    """Logits of a chunk behind a context that was read exactly, the blocks seen and attended, and the labels of its cells."""
    with attached(path, options.with_(prompts="exact"), **SIZES) as (context, run):
        read(context, 0, DEPTH)
        run.configure(options)
        before = blocks(run)
        logits = read(context, DEPTH, DEPTH + CHUNK)
        return logits, tuple(np.subtract(blocks(run), before)), run.cells.stream().read_sparsely.copy()


def test_what_is_left_out_is_counted_and_labelled_and_a_finer_resolution_leaves_out_less(synthetic):
    path = synthetic("llama", n_head=6, dtype="f32")
    exact, blocks_exact, labels = chunk_behind(path, KvOptions(**SPARSE | {"prompts": "exact"}))
    assert blocks_exact == (0, 0) and not labels.any()
    apart, share = [], []
    for resolution in (2.0, 50.0, 1e6):
        logits, (seen, attended), labels = chunk_behind(path, KvOptions(**SPARSE, prompt_sample_budget=resolution))
        assert resolution > 2 or labels[DEPTH : DEPTH + CHUNK].all()
        assert not labels[:DEPTH].any() and not labels[DEPTH + CHUNK :].any()
        apart.append(kld(exact, logits).mean())
        share.append(attended / seen)
    assert 0 < share[0] < share[1] < share[2] <= 1 and apart[2] < apart[1] < apart[0]
    assert apart[2] < 1e-6, "all of it is exact"


def test_short_contexts_are_read_exactly(synthetic):
    path = synthetic("llama", n_head=6)
    results = []
    for prompts in ("exact", "sparse"):
        with attached(path, KvOptions(**SPARSE | {"prompts": prompts}, prompt_sample_budget=2.0), **SIZES) as (context, run):
            results.append(read(context, 0, 1500))
            assert blocks(run) == (0, 0)
    assert np.array_equal(*results)


def test_cells_that_are_read_again_exactly_lose_their_label(synthetic):
    with attached(synthetic("llama", n_head=6), KvOptions(**SPARSE, prompt_sample_budget=2.0), **SIZES) as (context, run):
        read(context, 0, DEPTH)
        assert run.cells.stream().read_sparsely[2048:DEPTH].any()
        for options in (KvOptions(**SPARSE | {"prompts": "exact"}), KvOptions(mode="exact", policy="none")):
            run.configure(KvOptions(**SPARSE, prompt_sample_budget=2.0))
            llama_cpp.llama_memory_seq_rm(context.memory, 0, 2560, -1)
            read(context, 2560, DEPTH)
            assert run.cells.stream().read_sparsely[2560:DEPTH].all()
            run.configure(options)
            llama_cpp.llama_memory_seq_rm(context.memory, 0, 2560, -1)
            read(context, 2560, DEPTH)
            assert not run.cells.stream().read_sparsely[2560:DEPTH].any()


def test_a_label_goes_with_the_cells(synthetic):
    """The label goes into a saved state, from it into another context, and into a copy in another stream. An exact state takes it off."""
    path, sparse = synthetic("llama", n_head=6), KvOptions(**SPARSE, prompt_sample_budget=2.0)
    exact = sparse.with_(prompts="exact")
    with attached(path, exact, **SIZES) as (context, run):
        read(context, 0, DEPTH)
        unlabelled = context.save()
        run.configure(sparse)
        read(context, DEPTH, DEPTH + CHUNK)
        state, sequence = context.save(), context.save(sequence=0)
    expected = (np.arange(SIZES["n_ctx"]) >= DEPTH) & (np.arange(SIZES["n_ctx"]) < DEPTH + CHUNK)
    for saved, where in ((state, {}), (sequence, {"sequence": 0})):
        with attached(path, exact, **SIZES) as (context, run):
            context.load(saved, **where)
            assert np.array_equal(run.cells.stream().read_sparsely.astype(bool), expected)
            context.load(unlabelled)
            assert not run.cells.stream().read_sparsely.any()
    with attached(path, sparse, **SIZES | {"n_ctx": 2 * 4096, "n_seq": 2}, unified=False) as (context, run):
        read(context, 0, DEPTH)
        labels = run.cells.stream(0).read_sparsely.copy()
        assert labels.any() and not run.cells.stream(1).read_sparsely.any()
        llama_cpp.llama_memory_seq_cp(context.memory, 0, 1, -1, -1)
        context.decode([7], [DEPTH], [1])  # the copy is made when the next batch comes
        assert np.array_equal(run.cells.stream(1).read_sparsely[:DEPTH], labels[:DEPTH])


def test_streams_of_their_own(synthetic):
    """Each stream chooses among its own cells: its logits are those that it has alone."""
    path, options = synthetic("llama", n_head=6, dtype="f32"), KvOptions(**SPARSE, prompt_sample_budget=10.0)
    alone = {}
    for sequence in (0, 1):
        with attached(path, options, **SIZES | {"n_ctx": 2 * 4096, "n_seq": 2}, unified=False) as (context, run):
            for start in range(0, 3072, 256):
                part = tokens(3072)[start : start + 256] + sequence
                alone[sequence] = context.decode(part, range(start, start + 256), [sequence] * 256)
    with attached(path, options, **SIZES | {"n_ctx": 2 * 4096, "n_seq": 2}, unified=False) as (context, run):
        for start in range(0, 3072, 256):
            both = np.concatenate([tokens(3072)[start : start + 256] + sequence for sequence in (0, 1)])
            logits = context.decode(both, [*range(start, start + 256)] * 2, [0] * 256 + [1] * 256)
    for sequence in (0, 1):
        assert kld(alone[sequence], logits[256 * sequence : 256 * (sequence + 1)]).mean() < 1e-5


@pytest.mark.parametrize("offset", range(4))
def test_sequences_of_one_cache_do_not_lose_each_other(synthetic, offset: int):
    """One cache holds both sequences of a batch, and the second has one token of four: its history is read, wherever the tokens stand."""
    path, n = synthetic("llama", n_head=6, dtype="f32"), 1500
    found = []
    for prompts in ("exact", "sparse"):
        with attached(path, KvOptions(**SPARSE | {"prompts": "exact"}), **SIZES | {"n_seq": 2}) as (context, run):
            for sequence in (0, 1):
                for start in range(0, n, 250):
                    context.decode(tokens(n)[start : start + 250] + sequence, range(start, start + 250), [sequence] * 250)
            run.configure(KvOptions(**SPARSE | {"prompts": prompts}, prompt_sample_budget=1e6))
            sequences = np.array([1 if i % 4 == offset else 0 for i in range(40)])
            positions = [n + np.count_nonzero(sequences[:i] == sequences[i]) for i in range(40)]
            logits = context.decode(tokens(40), positions, sequences)
            assert blocks(run)[0] > 0 or prompts == "exact"
            found.append(logits[sequences == 1])
    assert kld(*found).max() < 1e-5


def test_a_device_refuses_them(synthetic, emulator):
    with pytest.raises(ConfigError) as caught, attached(synthetic("llama"), KvOptions(**SPARSE, attention_device="emulated"), n_ctx=512):
        pass
    assert str(caught.value) == "sparse prompts work on the processor only; use prompts exact, or device cpu"
