"""The way back to where modes start, and what is asked there."""

import numpy as np
import pytest
from msgspec.structs import replace
from support.benches import SPARSE
from support.stub import write_stub

from edgekv.bench.modes import find_mode
from edgekv.bench.text import find_text, standard_text
from edgekv.lab.questions import asking
from edgekv.lab.questions.answers import Answers, QuestionPlan
from edgekv.lab.questions.likeness import compare
from edgekv.lab.questions.start import Start, opened
from edgekv.lab.tasks import Blank, Question
from edgekv.measure.contexts import read


@pytest.fixture
def started(synthetic):
    """A decoder that has read 300 tokens of prose, its Start, and the tokens after them."""
    with opened(synthetic(), 2000, 1) as decoder:
        tokens = standard_text().tokens(decoder.llama, 400)
        start = Start(decoder, decoder.llama.kv.options)
        start.read(tokens[:300], [replace(find_mode("sparse"), destructive=True)], 1)
        yield decoder, start, tokens[300:]


@pytest.mark.parametrize("name", ["off", "exact", f"{SPARSE},policy=none"])
def test_snapshot_brings_back_what_was_dropped(started, name):
    """The same logits as before, whatever stood in the cells meanwhile; the sketches of the pages too. (A policy
    remembers the steps before, and what it pins is read.)"""
    decoder, start, tokens = started
    decoder.llama.kv.configure(find_mode(name).options(start.base, 300))
    decoder.decode(tokens[:1])
    snapshot = decoder.snapshot()

    def predicted() -> list[np.ndarray]:
        logits = []
        for token in tokens[1:4]:
            decoder.decode([token])
            logits.append(decoder.logits())
        return logits

    before = predicted()
    decoder.rewind(100)  # as a mode that drops cells would
    list(read(decoder, tokens[:90], 1))
    meanwhile = predicted()
    decoder.restore(snapshot)
    assert decoder.position == 301 and decoder.llama.kv.memory().n_cells_used == 301
    after = predicted()
    assert np.abs(np.subtract(before, after)).max() < 1e-3 < np.abs(np.subtract(before, meanwhile)).max()


def test_a_destructive_mode_starts_like_the_others(started):
    """Here it drops nothing, so it must predict what its twin does, and leave the cache as it was for the modes after it."""
    decoder, start, tokens = started
    twin = find_mode(SPARSE)
    modes = {"off": find_mode("off"), "exact": find_mode("exact"), "destructive": replace(twin, destructive=True), "twin": twin,
             "again": find_mode("exact-unobserved")}
    restored = []
    restore = decoder.restore
    decoder.restore = lambda snapshot: (restored.append(decoder.position), restore(snapshot))
    likeness = compare(decoder, start, modes, tokens[:40])
    assert restored == [300 + 39], "only after the mode that may have dropped cells"
    assert likeness.measured["destructive"].nll == pytest.approx(likeness.measured["twin"].nll, abs=1e-3)
    assert likeness.measured["again"].kld["exact"] == pytest.approx([0.0] * 23, abs=1e-6)
    assert len(likeness.measured["off"].nll) == 23


def test_a_mode_with_sparse_prompts_reads_the_context_itself(synthetic):
    """Once, and the modes after it start from what full attention has read."""
    with opened(synthetic("llama", n_head=6), 4096, 2) as decoder:
        tokens = np.random.default_rng(5).integers(260, 350, 3000).tolist()
        start, told = Start(decoder, decoder.llama.kv.options), []
        reading, exact = find_mode("sparse:prompts=sparse,prompt_sample_budget=2"), find_mode("exact")
        assert reading.reads_itself and not exact.reads_itself and not find_mode("sparse").reads_itself
        start.read(tokens, [reading], 2, told.append)

        def read_sparsely(mode) -> bool:
            start.begin(mode)
            assert decoder.position == 3000
            decoder.decode(tokens[:1])
            return bool(decoder.kv.cells.stream().read_sparsely[:3000].any())

        assert [read_sparsely(mode) for mode in (exact, reading, reading, exact)] == [False, True, True, False]
        assert told.count(3000) == 2, "full attention and the mode, each once"


def test_questions_come_after_the_same_tokens_in_a_destructive_mode(synthetic, monkeypatch):
    """What stands before a question that is asked after the context went cold does not depend on how it got there."""
    seen = []
    monkeypatch.setattr("edgekv.lab.questions.answers.ask", lambda decoder, *_: (seen.append(decoder.position), decoder.decode([7]), ["x"])[-1])
    with opened(synthetic(), 3000, 1) as decoder:
        plan = QuestionPlan(decoder.llama, find_text("prose"), ("after-cold",), (700,), 1, 0)
        start, (reading,) = Start(decoder, decoder.llama.kv.options), plan.readings
        twin = find_mode(SPARSE)
        destructive = replace(twin, destructive=True)
        start.read(reading.tokens[: reading.start], [destructive], 1)
        decoded = {False: [], True: []}
        for mode in (twin, destructive):
            answers = Answers()
            plan.answer(reading, start, mode, answers, lambda position, n, mode=mode: decoded[mode.destructive].append((position, n)))
            assert [answer.said for answer in answers.given] == [("x",)] * 4
    assert seen == 2 * [1200 + 32 * i for i in range(4)]
    assert sum(n for _, n in decoded[True]) > 3 * sum(n for _, n in decoded[False])


def test_answers_are_read_gap_by_gap(synthetic, monkeypatch):
    """The token that ends a gap is not decoded, and what it holds before the end goes on."""
    with opened(synthetic(), 500, 1) as decoder:
        script = iter("42, ok\n" + "Rome rest")
        tokenize = decoder.llama.tokenize
        decoded = []
        monkeypatch.setattr(decoder, "decode", decoded.extend)
        monkeypatch.setattr(asking.np, "argmax", lambda logits: tokenize(next(script).encode(), add_bos=False)[-1])
        monkeypatch.setattr(decoder, "logits", lambda: None)
        question = Question("age?", (Blank("is", "42"), Blank(" of", "ok")))
        assert [text.strip() for text in asking.ask(decoder, question, (), ())] == ["42", "ok"]
        assert decoder.llama.detokenize(decoded).decode().replace(" ", "").startswith("age?is42ofok")
        one_word = Question("?", (Blank("in", "Rome"),), one_word=True)
        assert asking.ask(decoder, one_word, (), ())[0].strip() == "Rome"
        short = Question("?", (Blank("in", "Rome"),), n_answer=3)
        assert asking.ask(decoder, short, (), ())[0].strip() == "res"


def test_every_token_that_ends_an_answer_ends_a_gap(tmp_path, monkeypatch):
    """Of this file's two it names the other (llama.cpp 0c1e57098 knows more ends by their texts: findings/reponame-ends)."""
    with opened(write_stub(tmp_path / "two.gguf", "", eos="<|im_end|>"), 500, 1) as decoder:
        script = iter(decoder.llama.tokenize(b"42<|endoftext|>7 7", add_bos=False, special=True))
        monkeypatch.setattr(asking.np, "argmax", lambda logits: next(script))
        assert asking.ask(decoder, Question("age?", (Blank("is", "42"),)), (), ()) == ["42"]
