"""Asks a question of a context in the present mode: the question and the given parts of the answer are decoded token by token,
and the gaps are filled greedily."""

from collections.abc import Sequence

import numpy as np

from edgekv.lab.tasks import Question
from edgekv.lab.texts.frame import plain
from edgekv.llama import Llama
from edgekv.measure.decoder import Decoder

import llama_cpp

CLAUSE_ENDS = '.,;\n"<>(){}[]='
"""A gap that is not empty ends before the first of these."""


def ask(decoder: Decoder, question: Question, lead: Sequence[int], follow: Sequence[int]) -> list[str]:
    """The model's text for each gap of the answer. `lead` precedes the question, `follow` comes between question and answer."""
    asked = [*lead, *plain(decoder.llama, question.asked), *follow]
    _decode(decoder, asked)
    answers, left_over = [], ""
    for blank in question.blanks:
        _decode(decoder, plain(decoder.llama, left_over + blank.before))
        answer, left_over = _fill(decoder, question)
        answers.append(answer)
    return answers


def n_tokens_of(llama: Llama, question: Question) -> int:
    """The most tokens that a question decodes."""
    given = [question.asked, *(blank.before for blank in question.blanks)]
    return sum(len(plain(llama, text)) for text in given) + (question.n_answer + 2) * len(question.blanks)


def _decode(decoder: Decoder, tokens: Sequence[int]) -> None:
    """Decode one by one, so that a mode that selects pages selects for every token."""
    for token in tokens:
        decoder.decode([token])


def _fill(decoder: Decoder, question: Question) -> tuple[str, str]:
    """(answer, its text that is not decoded yet). The token in which the gap ends is not decoded."""
    llama, ends = decoder.llama, CLAUSE_ENDS + " " * question.one_word
    vocab = llama_cpp.llama_model_get_vocab(llama.model)
    tokens: list[int] = []
    said = ""
    while len(tokens) < question.n_answer:
        token = int(np.argmax(decoder.logits()))
        ended = llama_cpp.llama_vocab_is_eog(vocab, token)  # the file names one such token, and llama.cpp knows others by their texts
        longer = said + "\n" if ended else llama.detokenize([*tokens, token]).decode(errors="replace")
        begins = len(longer) - len(longer.lstrip(" \n\"'`*<[("))
        end = next((i for i in range(begins, len(longer)) if longer[i] in ends), None)
        if end is not None and end > begins:
            return longer[:end], longer[len(said) : end]
        tokens.append(token)
        said = longer
        decoder.decode([token])
    return said, ""
