"""How good a sample is: the error against full attention over the same cache, its estimate, and the mass that policies see."""

from collections.abc import Iterator

import numpy as np
import pytest
from support.contexts import Context, attached
from support.decoding import kld
from support.full_attention import Capture, full

from edgekv.bench.text import find_text
from edgekv.config import KvOptions, SelectionOptions
from edgekv.runtime.runtime import Runtime

import llama_cpp  # after edgekv.runtime.runtime, which puts the libraries in place

DEPTH, STEPS = 2000, 24
SAMPLED = KvOptions(mode="sparse", exact_tokens=0, error_every=1, keep_rows=True)


def tokens_of(context: Context, n: int, text: str = "prose") -> list[int]:
    vocabulary = llama_cpp.llama_model_get_vocab(context.model)
    words = find_text(text).content[: 8 * n].encode()
    tokens = (llama_cpp.llama_token * len(words))()
    found = llama_cpp.llama_tokenize(vocabulary, words, len(words), tokens, len(words), True, False)
    assert found >= n, f"only {found} of {n} tokens"
    return list(tokens[:n])


def read(context: Context, tokens: list[int], sequence: int = 0) -> None:
    for first in range(0, len(tokens), 256):
        part = tokens[first : first + 256]
        context.decode(part, range(first, first + len(part)), [sequence] * len(part))


def sampled_steps(path, resolution: float, n_steps: int = STEPS) -> Iterator[tuple[Runtime, Capture, int, np.ndarray, np.ndarray]]:
    """Decoded tokens of a text behind DEPTH others: (runtime, capture of attention, cells, this step's sums of selection [row, head],
    attention mass [row, head, page])."""
    capture, seen = Capture(), []
    options = SAMPLED.with_(sample_budget=resolution)
    with attached(path, options, n_ctx=DEPTH + n_steps, n_seq=1, n_threads=1, **capture.arguments) as (context, run):
        tokens = tokens_of(context, DEPTH + n_steps)
        read(context, tokens[:DEPTH])
        run.observers.append(lambda step: seen.append(step.mass_sum.copy()))
        capture.on = True
        for position in range(DEPTH, DEPTH + n_steps):
            before = run.layer_selection()
            context.decode([tokens[position]], [position], [0])
            after = run.layer_selection()
            sums = np.zeros_like(after)
            for name in after.dtype.names:
                sums[name] = after[name] - before[name]
            yield run, capture, position + 1, sums, seen.pop()


@pytest.mark.parametrize("resolution", [500, SelectionOptions.sample_budget])
def test_the_estimated_error_is_the_error(default_model, resolution: float):
    """The estimate agrees with the error of each head's output from full attention of the same query over the same cache."""
    estimated, true = [], []
    for run, capture, n_cells, sums, _ in sampled_steps(default_model, resolution):
        for row, layer in enumerate(run.layers):
            expected = full(run, layer.il, capture[f"Qcur-{layer.il}"], range(n_cells)).output
            found = capture[f"kqv_out-{layer.il}"].reshape(expected.shape)
            errors = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
            true.append(errors.reshape(layer.n_head_kv, -1).mean(axis=1))
            assert (sums["n_errors"][row] == layer.n_head // layer.n_head_kv).all()
            estimated.append(sums["error"][row] / sums["n_errors"][row])
        report = run.selection()
    estimated, true = np.array(estimated), np.array(true)
    rounded = np.maximum(estimated, true) < 1e-4  # such an error is the arithmetic of the kernels
    near = rounded | (np.abs(np.log2(np.maximum(estimated, 1e-9) / true)) <= 1)
    assert near.mean() >= 0.9 and rounded.mean() < 0.1
    assert np.sqrt(np.mean(estimated**2)) == pytest.approx(np.sqrt(np.mean(true**2)), rel=0.3)
    assert report.error == pytest.approx(estimated.mean(), rel=1e-6)


def test_what_is_attended_are_the_rows_with_their_weights(default_model):
    for run, capture, n_cells, sums, mass in sampled_steps(default_model, 500, 3):
        for row, layer in enumerate(run.layers):
            group, found = layer.n_head // layer.n_head_kv, capture[f"kqv_out-{layer.il}"].reshape(layer.n_head, -1)
            for head in range(layer.n_head_kv):
                cells, weights = run.last_rows(row, head)
                mine = slice(head * group, (head + 1) * group)
                expected = full(run, layer.il, capture[f"Qcur-{layer.il}"], cells, weights)
                np.testing.assert_allclose(found[mine], expected.output[mine], atol=1e-4 * np.abs(expected.output[mine]).max())
                pages = np.bincount(cells // 16, expected.mass[mine].sum(axis=0), mass.shape[2])
                np.testing.assert_allclose(mass[row, head], pages, atol=1e-4)
                assert sums["n_read"][row, head] == len(cells) and sums["n_certain"][row, head] == np.count_nonzero(weights == 1)
                assert sums["n_visible"][row, head] == n_cells and sums["n_tokens"][row, head] == 1


def test_mass_is_that_of_full_attention(default_model):
    """Mass of each page, summed over tokens, is right also for pages that were hardly ever read."""
    found = expected = reads = 0
    n_steps = 2 * STEPS
    for run, capture, n_cells, _, mass in sampled_steps(default_model, 200, n_steps):
        n_pages = -(-n_cells // 16)
        shape = len(run.layers), mass.shape[1], DEPTH // 16
        step_mass, step_reads = np.zeros(shape), np.zeros(shape)
        for row, layer in enumerate(run.layers):
            whole = full(run, layer.il, capture[f"Qcur-{layer.il}"], range(n_cells)).mass
            heads = np.pad(whole, ((0, 0), (0, 16 * n_pages - n_cells))).reshape(layer.n_head_kv, -1, n_pages, 16).sum(axis=(1, 3))
            step_mass[row] = heads[:, : shape[2]]
            for head in range(layer.n_head_kv):
                cells, _ = run.last_rows(row, head)
                step_reads[row, head] = np.bincount(cells // 16, minlength=n_pages)[: shape[2]] > 0
        np.testing.assert_allclose(mass.sum(axis=2), layer.n_head // layer.n_head_kv, rtol=1e-4)
        found, expected, reads = found + mass[:, :, : shape[2]], expected + step_mass, reads + step_reads
    # the true mass chooses the pages: pages that were read by luck weigh too much
    chance = 200 * expected / (n_steps * layer.n_head // layer.n_head_kv)
    for name, pages in (("every page", chance >= 0), ("read in less than half of the steps", chance < 0.5),
                        ("in less than a tenth", chance < 0.1)):
        assert pages.mean() > 0.05, name
        assert found[pages].sum() == pytest.approx(expected[pages].sum(), rel=0.1), name
    assert not found[reads == 0].any() and (reads == 0).mean() > 0.01, "what no token read, none saw"
    often = expected > np.quantile(expected, 0.99)
    assert np.mean(found[often] / expected[often]) == pytest.approx(1, abs=0.05)


LENGTHS = {2: (3000, 90), 4: (1800, 40, 700, 300), 8: (1500, 20, 900, 60, 400, 250, 130, 800)}


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "streams"])
@pytest.mark.parametrize("n_seq", LENGTHS)
def test_slots_do_not_starve_each_other(default_model, n_seq: int, unified: bool):
    """Sequences of very different lengths are decoded side by side: each stays as near to its own full attention."""
    lengths = LENGTHS[n_seq]
    n_ctx = sum(-(-n // 256) * 256 + 256 for n in lengths) if unified else n_seq * 3328
    options = SAMPLED.with_(mode="exact", keep_rows=False)
    with attached(default_model, options, n_ctx=n_ctx, n_seq=n_seq, unified=unified, n_threads=1) as (context, run):
        texts = [tokens_of(context, n + 16, text) for n, text in zip(lengths, ("prose", "code", "dialogue") * 3)]
        for sequence, (n, tokens) in enumerate(zip(lengths, texts)):
            read(context, tokens[:n], sequence)
        logits = {}
        for mode in ("exact", "sparse"):
            run.mode = mode
            steps = [context.decode([tokens[n + i] for n, tokens in zip(lengths, texts)], [n + i for n in lengths], range(n_seq))
                     for i in range(16)]
            logits[mode] = np.stack(steps, axis=1)
            for sequence, n in enumerate(lengths):
                llama_cpp.llama_memory_seq_rm(context.memory, sequence, n, -1)
        seen = run.selection()
        assert seen.n_selections == 16 * n_seq * sum(layer.n_head_kv for layer in run.layers)
        assert seen.visible_per_head == pytest.approx(np.mean(lengths) + 8.5)
    apart = np.array([kld(*(logits[mode][sequence] for mode in ("exact", "sparse"))).mean() for sequence in range(n_seq)])
    assert apart.max() < 0.02, apart
