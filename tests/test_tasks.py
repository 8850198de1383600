"""The tasks of `edgekv quality`: their contexts, their questions, their graders, without asking any model."""

from __future__ import annotations

import pytest

from edgekv.bench.answers import GAP_TOKENS, Plan
from edgekv.bench.asking import n_tokens_of
from edgekv.bench.frame import Frame, plain
from edgekv.bench.haystack import paragraphs, planted, sentences
from edgekv.bench.tasks import TASKS, Blank, Question
from edgekv.bench.tasks.base import is_right, spread
from edgekv.bench.text import Text, find_text
from edgekv.errors import ConfigError, ModelError
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
        assert sample.question_in_context == (name == "question-first") == ("?" in opening)
        for question in sample.questions:
            assert not question.asked or question.asked not in read
            assert all(blank.before.strip(' \n.,":') not in opening for blank in question.blanks if not sample.question_in_context)


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
    plan = Plan(llama, find_text("prose"), tasks, (2000, LENGTH), 2, seed=0)
    assert [[asked.task for asked in reading.samples] for reading in plan.readings] == 4 * [
        ["question-last", "after-cold", "several"], ["question-first"], ["passkey"]]
    after_cold = plan.readings[0].samples[1]
    assert after_cold.sample.n_cold == 500 and len(plan.cold) == 500 + 4 * GAP_TOKENS
    assert plan.n_ctx > LENGTH + 500 + 3 * GAP_TOKENS
    assert after_cold.n_decoded(destructive=True) > 4 * 500 > after_cold.n_decoded(destructive=False)
    with pytest.raises(ConfigError, match="a tenth of it"):
        Plan(llama, Text("short", "One sentence after another. " * 200), ("after-cold",), (512,), 1, 0)


def test_what_is_decoded_while_it_goes_cold_is_no_part_of_a_context(llama):
    plan = Plan(llama, find_text("prose"), ("after-cold", "lines"), (LENGTH,), 2, seed=0)
    middle = said(llama, plan.cold[100:200])
    assert all(middle not in said(llama, reading.tokens) for reading in plan.readings)


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


def test_sentences_are_the_text():
    text = Text("own", "One. Two is here: three!\nFour\n\nFive? Six")
    assert "".join(sentences(text)) == "".join(paragraphs(text)) == text.content + "\n\n"
    assert sentences(text) == ["One. ", "Two is here: ", "three!\n", "Four\n\n", "Five? ", "Six\n\n"]


def test_a_needle_that_the_next_piece_would_push_out_comes_earlier(llama):
    pieces = ["a" * 40 + ". "] * 20 + ["b" * 500 + "."]
    early = planted(llama, "own", pieces, ["needle"], [850], 1000, 1000)
    assert early.positions[0] < 850 and len(early.tokens) == 1000
    with pytest.raises(ConfigError, match="too little text"):
        planted(llama, "own", pieces[:5], ["needle"], [10], 1000, 1000)
    with pytest.raises(ConfigError, match="1 planted sentences in 5 tokens"):
        planted(llama, "own", pieces, ["a needle that is long"], [0], 1000, 5)
