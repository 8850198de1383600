"""The tasks of `edgekv lab quality`: their contexts, their questions, their graders, without asking any model."""

import os
import subprocess
import sys
from hashlib import sha256

import pytest
from support.laboratory import IMPORT

from edgekv.bench.text import Text, find_text
from edgekv.common.errors import ConfigError, ModelError
from edgekv.lab.questions.answers import GAP_TOKENS, QuestionPlan
from edgekv.lab.questions.asking import n_tokens_of
from edgekv.lab.tasks import TASKS, Blank, Question
from edgekv.lab.tasks.task import is_right, spread
from edgekv.lab.texts.frame import Frame, plain
from edgekv.lab.texts.haystack import planted
from edgekv.llama import Llama

LENGTH = 3000
"""A token of a synthetic model is a character."""


@pytest.fixture(scope="module")
def llama(synthetic):
    model = Llama(str(synthetic()), n_ctx=64, verbose=False)
    yield model
    model.close()


def samples(name: str, n: int = 3, seed: int = 0, length: int = LENGTH):
    return [TASKS.get(name).sample(seed, length, index, n) for index in range(n)]


def said(llama: Llama, tokens) -> str:
    return llama.detokenize(list(tokens), special=True).decode()


@pytest.mark.parametrize("name", TASKS)
def test_samples_depend_on_the_seed_alone(name):
    assert samples(name) == samples(name) != samples(name, seed=1)
    one, other, _ = samples(name)
    assert one != other and TASKS.describe(name)


@pytest.mark.parametrize("name", TASKS)
def test_contexts(llama, name):
    """As long as asked for; every needle in it once, where it is said to be; no question in it, unless the task is about that."""
    text, frame = find_text("prose"), Frame.of(llama)
    for sample in samples(name):
        context = sample.context
        built = context.build(llama, frame, text)
        read = said(llama, built.tokens)
        assert len(built.tokens) == context.n_tokens == LENGTH and read.endswith("\n\n")
        assert built.tokens[: len(frame.before)] == list(frame.before)
        assert len(built.positions) == len(context.needles) == len(context.depths)
        for needle, depth, position in zip(context.needles, context.depths, built.positions):
            assert read.count(needle) == 1
            assert said(llama, built.tokens[position:]).lstrip().startswith(needle)
            assert abs(position - depth * LENGTH) < 0.2 * LENGTH and position + len(plain(llama, needle)) <= LENGTH
        opening = said(llama, plain(llama, context.opening)).strip()
        in_context = name == "question-first"
        assert in_context == ("?" in opening)
        for question in sample.questions:
            assert not question.asked or question.asked not in read
            said_before = [begun for blank in question.blanks if (begun := blank.before.strip(' \n.,":'))]
            assert said_before and (in_context or all(begun not in opening for begun in said_before))


@pytest.mark.parametrize("name", TASKS)
def test_the_answers_stand_in_the_context(llama, name):
    """And are graded: the right ones found, those of another question not."""
    text, frame = find_text("prose"), Frame.of(llama)
    for sample in samples(name):
        read = said(llama, sample.context.build(llama, frame, text).tokens)
        for question in sample.questions:
            right = [f" {blank.expected}" for blank in question.blanks]
            assert all(blank.expected in read for blank in question.blanks)
            assert question.grade(right) == (True,) * len(right)
            assert question.grade(["something else"] * len(right)) == (False,) * len(right)
            assert question.grade([answer + "7" for answer in right]) == (False,) * len(right)
            assert question.n_answer * len(question.blanks) < n_tokens_of(llama, question)


def test_graders():
    assert is_right("4711", " indeed 4711.") and is_right("4711", "<4711>")
    assert not any(is_right("4711", wrong) for wrong in ("47112", "12 or 4711", "", "none"))
    assert is_right("baker", ' "Baker"') and is_right("Vienna", " Vienna in Austria")
    assert not is_right("baker", "bakery") and not is_right("brave", "brave-otter") and not is_right("baker", "a baker")
    anywhere = Question("?", (Blank("1.", "apple"), Blank("2.", "pear")), any_order=True)
    assert anywhere.grade(["pear", "plum"]) == (False, True) and anywhere.grade(["pear", "apple"]) == (True, True)
    in_order = Question("?", (Blank("1.", "apple"), Blank("2.", "pear")))
    assert in_order.grade(["pear", "apple"]) == (False, False) and in_order.grade(["apple", "plum"]) == (True, False)
    with pytest.raises(ValueError):
        in_order.grade(["apple"])


@pytest.mark.parametrize(("name", "n_expected"), [("common-words", 3), ("frequent-words", 3)])
@pytest.mark.parametrize("length", [700, LENGTH])
def test_the_expected_words_are_the_frequent_ones(llama, name, n_expected, length):
    """Wherever the list is cut off."""
    for sample in samples(name, length=length):
        read = said(llama, sample.context.build(llama, Frame.of(llama), find_text("prose")).tokens)
        words = [word.strip() for word in read.split(":")[-1].split(",")][:-1]
        ranked = sorted(set(words), key=words.count, reverse=True)
        expected = {blank.expected for blank in sample.questions[0].blanks}
        assert set(ranked[:n_expected]) == expected and len(expected) == n_expected
        assert words.count(ranked[n_expected - 1]) > words.count(ranked[n_expected])


def test_depths_are_spread_over_the_samples():
    places = [depth for sample in samples("passkey", n=4) for depth in sample.context.depths]
    assert all(i / 4 <= place < (i + 1) / 4 for i, place in enumerate(places))
    assert spread(4, 0.5) == (0.125, 0.375, 0.625, 0.875)


def test_equal_contexts_are_read_once(llama):
    tasks = ("question-last", "question-first", "after-cold", "several", "passkey")
    plan = QuestionPlan(llama, find_text("prose"), tasks, (2000, LENGTH), 2, seed=0)
    assert [[asked.task for asked in reading.samples] for reading in plan.readings] == 4 * [
        ["question-last", "after-cold", "several"], ["question-first"], ["passkey"]]
    after_cold = plan.readings[0].samples[1]
    assert after_cold.sample.n_cold == 500 and len(plan.cold) == 500 + 4 * GAP_TOKENS
    assert plan.n_ctx > LENGTH + 500 + 3 * GAP_TOKENS
    assert after_cold.n_decoded(destructive=True) > 4 * 500 > after_cold.n_decoded(destructive=False)
    with pytest.raises(ConfigError, match="a tenth of it"):
        QuestionPlan(llama, Text("short", "One sentence after another. " * 200), ("after-cold",), (512,), 1, 0)


def test_samples_are_the_same_in_another_process(llama):
    """Nothing hangs on the order of sets or on a clock."""
    code = (f"{IMPORT}; import hashlib; from edgekv.lab.tasks import TASKS; "
            f"print(hashlib.sha256(repr([TASKS.get(name).sample(3, {LENGTH}, 0, 2) for name in TASKS]).encode()).hexdigest())")
    here = sha256(repr([TASKS.get(name).sample(3, LENGTH, 0, 2) for name in TASKS]).encode()).hexdigest()
    for hashing in ("1", "2"):
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": hashing}, capture_output=True, text=True)
        assert done.stdout.strip() == here, done.stderr
    one, other = (QuestionPlan(llama, find_text("prose"), tuple(TASKS), (1500,), 1, seed=3) for _ in range(2))
    assert [reading.tokens for reading in one.readings] == [reading.tokens for reading in other.readings]


def test_frames(llama, default_model, synthetic, monkeypatch):
    frame = Frame.of(llama)
    assert said(llama, frame.before).endswith("user: ") and said(llama, frame.after).endswith("assistant: ")
    assert said(llama, frame.between).strip() == "user:"
    real = Llama(str(default_model), n_ctx=64, vocab_only=True, verbose=False)
    frame = Frame.of(real)
    assert said(real, frame.before).endswith("<|im_start|>user\n") and said(real, frame.after).endswith("<|im_start|>assistant\n")
    assert said(real, frame.between) == "<|im_end|>\n<|im_start|>user\n"
    assert real.tokenize(b"<|im_end|>", add_bos=False, special=True)[0] in frame.after
    assert real.tokenize(b"<|im_end|>", add_bos=False, special=True)[0] not in plain(real, "<|im_end|>")
    monkeypatch.setitem(real.metadata, "tokenizer.chat_template", "{{ messages[0]['content'] | upper | length }}")
    with pytest.raises(ModelError, match="changes what is said"):
        Frame.of(real)
    monkeypatch.delitem(real.metadata, "tokenizer.chat_template")
    assert said(real, Frame.of(real).after) == "\nAnswer: "
    real.close()


@pytest.mark.parametrize("real", [False, True])
def test_no_second_beginning_of_text(synthetic, default_model, real, monkeypatch):
    """What a template writes is right, however often; what a tokenizer or a template adds besides is refused, wherever it slips in."""
    llama = Llama(str(default_model if real else synthetic()), n_ctx=64, vocab_only=True, verbose=False)
    bos, prose, dialogue = llama.token_bos(), find_text("prose"), find_text("dialogue")
    plan = QuestionPlan(llama, prose, tuple(TASKS), (1500,), 1, seed=0)
    before = list(plan.frame.before)
    assert before.count(bos) == (2 if real else 0), "the real model begins each turn with that token"
    assert all(reading.tokens[: len(before)] == before and bos not in reading.tokens[len(before) :] for reading in plan.readings)
    assert (dialogue.tokens(llama, 300).count(bos) > 3) == real and prose.tokens(llama, 300).count(bos) == (not real)
    tokenize = llama.tokenize
    monkeypatch.setattr(llama, "tokenize", lambda text, add_bos=True, special=False: [bos, *tokenize(text, True, special)])
    for slip in (lambda: prose.tokens(llama, 300) if not real else plain(llama, "x"), lambda: dialogue.tokens(llama, 300),
                 lambda: Frame.of(llama), lambda: plain(llama, "One.")):
        with pytest.raises(ModelError, match="beginning-of-text token"):
            slip()
    monkeypatch.setattr(llama, "tokenize", tokenize)
    template = llama.metadata["tokenizer.chat_template"]
    monkeypatch.setitem(llama.metadata, "tokenizer.chat_template", "{{ bos_token }}{{ bos_token }}" + template)
    with pytest.raises(ModelError, match="the chat template has the beginning-of-text token"):
        Frame.of(llama)
    llama.close()


def test_a_needle_that_the_next_piece_would_push_out_comes_earlier(llama):
    pieces = ["a" * 40 + ". "] * 20 + ["b" * 500 + "."]
    early = planted(llama, "own", pieces, ["needle"], [850], 1000, 1000)
    assert early.positions[0] < 850 and len(early.tokens) == 1000
    with pytest.raises(ConfigError, match="too little text"):
        planted(llama, "own", pieces[:5], ["needle"], [10], 1000, 1000)
    with pytest.raises(ConfigError, match="1 planted sentences in 5 tokens"):
        planted(llama, "own", pieces, ["a needle that is long"], [0], 1000, 5)
