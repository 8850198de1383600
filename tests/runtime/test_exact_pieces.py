"""A piece of a prompt, however short, is read by the same kernel in modes exact and sparse: the same bits, and no memory for what is not selected."""

from contextlib import closing

import numpy as np
import pytest
from support.contexts import Context, attached

from edgekv.config import KvOptions
from edgekv.llama import Llama
from edgekv.runtime.cells import SAMPLED
from edgekv.runtime.runtime import Runtime

N = 600
EXACT = {"mode": "exact", "observe": True, "observe_prompt": False}
SPARSE = {"mode": "sparse", "exact_tokens": 0, "sample_budget": 4.0, "policy": "none", "observe": True, "observe_prompt": False}
PIECES = (1, 4, 15, 16, 1)
TOKENS = np.random.default_rng(5).integers(260, 350, 2 * N)


def read(context: Context, run: Runtime, first: int, end: int, seq: int = 0) -> np.ndarray:
    with run.reading_prompt(seq):
        return context.read(TOKENS, first, end, seq, 200)


def pieces(path, options: dict, **arguments) -> tuple[np.ndarray, np.ndarray, int]:
    """A prompt's logits, in pieces behind a long one; the labels; and the bytes of the workspace."""
    with attached(path, KvOptions(**options), n_ctx=4096, **arguments) as (context, run):
        found = [read(context, run, 0, N)]
        for n in PIECES:
            first = run.n_positions
            found.append(read(context, run, first, first + n))
        return np.concatenate(found), run.cells.stream().labels.copy(), run.memory().workspace_bytes


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("kind", ["llama", "gpt-oss"])
def test_pieces_are_the_same_bits_in_both_modes(synthetic, kind: str, unified: bool):
    want, labels, exact_bytes = pieces(synthetic(kind, dtype="f32"), EXACT, unified=unified)
    assert not labels.any()
    got, labels, sparse_bytes = pieces(synthetic(kind, dtype="f32"), SPARSE, unified=unified)
    assert not labels.any(), "what is read exactly is labelled so"
    np.testing.assert_array_equal(got, want)
    assert sparse_bytes == exact_bytes, "no lists and no shares for what is not selected"


def test_answers_between_are_sampled(synthetic):
    """The graph that a piece leaves behind does not serve an answer, and the other way round."""
    def turns(options: dict) -> tuple[list[np.ndarray], np.ndarray]:
        with attached(synthetic("llama", dtype="f32"), KvOptions(**options), n_ctx=2048) as (context, run):
            read(context, run, 0, N)
            found = []
            for first in range(N, N + 4, 2):
                found.append(read(context, run, first, first + 1))
                found.append(context.decode(TOKENS[first + 1:first + 2], [first + 1], [0]))
            return found, run.cells.stream().labels.copy()

    want, _ = turns(EXACT)
    got, labels = turns(SPARSE)
    assert np.flatnonzero(labels).tolist() == [N + 1, N + 3] and set(labels[labels > 0]) == {SAMPLED}
    np.testing.assert_array_equal(got[0], want[0])
    assert not np.array_equal(got[1], want[1])


@pytest.mark.parametrize("order", ["answers first", "mixed"])
def test_tokens_of_one_stream_are_apart(synthetic, order: str):
    """One cache for all sequences: an answer's tokens are sampled, a prompt's beside them are read whole."""
    def together(options: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        with attached(synthetic("llama", dtype="f32"), KvOptions(**options), n_ctx=4096) as (context, run):
            for seq in range(3):
                read(context, run, 0, N, seq=seq)
            sequences = [0, 0, 2, 2, 1, 1, 1] if order == "answers first" else [1, 0, 2, 1, 0, 1, 2]
            seen = dict.fromkeys(range(3), N)
            positions = [seen.__setitem__(seq, seen[seq] + 1) or seen[seq] - 1 for seq in sequences]
            with run.reading_prompt(1):
                logits = context.decode(TOKENS[positions], positions, sequences)
            mine = np.array(sequences) == 1
            view = run.cells.stream()
            sampled = {seq: view.positions[view.in_sequence(seq) & (view.labels == SAMPLED)].tolist() for seq in range(3)}
            assert options is EXACT or sampled == {0: [N, N + 1], 1: [], 2: [N, N + 1]}, "other tokens are labelled as sampled"
            assert options is EXACT or run.selection().n_selections == 4 * len(run.layers) * run.layers[0].n_head_kv, "four tokens select"
            return logits[mine], logits[~mine], run.mass().copy()

    want, _, _ = together(EXACT)
    piece, answers, mass = together(SPARSE)
    np.testing.assert_allclose(piece, want, rtol=0, atol=1e-4 * np.abs(want).max())
    assert np.isfinite(mass).all()
    alone = together(SPARSE)
    np.testing.assert_array_equal(alone[1], answers)


def test_so_does_python(synthetic):
    """A short question behind a long text: the log-probabilities of its answer's first token, cold and again."""
    def asked(options: dict) -> list[np.ndarray]:
        model = Llama(str(synthetic("llama", dtype="f32")), n_ctx=2048, n_threads=2, verbose=False, logits_all=True, kv_options=KvOptions(**options))
        with closing(model) as llama:
            found = []
            text = TOKENS[:N].tolist()
            for tokens in (text, [*text, 261, 262, 263], [*text, 261, 262, 263]):
                next(llama.generate(tokens, temp=0))
                found.append(np.array(llama.scores[llama.n_tokens - 1]))
            return found

    for got, want in zip(asked(SPARSE), asked(EXACT)):
        np.testing.assert_array_equal(got, want)


@pytest.mark.usefixtures("emulator")
def test_so_does_a_device(synthetic):
    """The device agrees where a ubatch holds nothing but a prompt's tokens."""
    want, _, _ = pieces(synthetic("llama", dtype="f32"), EXACT | {"attention_device": "emulated"}, n_seq=1)
    got, _, _ = pieces(synthetic("llama", dtype="f32"), SPARSE | {"attention_device": "emulated"}, n_seq=1)
    np.testing.assert_array_equal(got, want)
