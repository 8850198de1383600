"""A task: contexts, questions about them, and the grading of answers."""

import re
from collections.abc import Callable, Sequence
from random import Random

from msgspec import Struct

from edgekv.bench.text import Text
from edgekv.common.registry import Registry
from edgekv.lab.texts.frame import Frame, plain
from edgekv.lab.texts.haystack import MARGIN, Haystack, planted, sentences
from edgekv.llama import Llama


class Blank(Struct, frozen=True):
    """A gap in the answer, which the model fills; the text before the gap is given."""

    before: str
    expected: str


class Question(Struct, frozen=True):
    """A question, and its answer with gaps. Each gap is an item of its own."""

    asked: str
    blanks: tuple[Blank, ...]
    any_order: bool = False
    """An expected item counts in any gap."""
    one_word: bool = False
    """A gap ends at the first space; otherwise only where a clause ends."""
    n_answer: int = 12
    """Most tokens of a gap."""

    def grade(self, answers: Sequence[str]) -> tuple[bool, ...]:
        """For each expected item, whether it was found. `answers`: the texts of the gaps, in order."""
        if self.any_order:
            return tuple(any(is_right(blank.expected, answer) for answer in answers) for blank in self.blanks)
        return tuple(is_right(blank.expected, answer) for blank, answer in zip(self.blanks, answers, strict=True))


def is_right(expected: str, answer: str) -> bool:
    """Whether an answer is right. An expected number must equal the answer's first number, to the digit. Other text must begin the answer, and
    no letter, digit or hyphen may follow; case and quotation marks do not matter."""
    if expected.isdigit():
        return next(iter(re.findall(r"\d+", answer)), None) == expected
    said, wanted = (text.strip().strip("\"'`*<[(").casefold() for text in (answer, expected))
    return said.startswith(wanted) and not (said[len(wanted) :][:1].isalnum() or said[len(wanted) :][:1] == "-")


class Context(Struct, frozen=True):
    """The text before any question: the beginning of the user's turn. Equal contexts are read once for all their
    tasks."""

    n_tokens: int
    opening: str = ""
    needles: tuple[str, ...] = ()
    """Sentences planted in natural text."""
    depths: tuple[float, ...] = ()
    """The place of each needle as a share of the context, ascending: the needle follows the sentence at that place."""
    skip: float = 0.0
    """The context's beginning in the text, as a share of the text's sentences."""
    words: tuple[str, ...] = ()
    """Words in place of text, as many as fit."""

    def build(self, llama: Llama, frame: Frame, text: Text) -> Haystack:
        """Build a context of `n_tokens` tokens, including the frame's beginning; the last ones end the paragraph. Raises ConfigError if
        the text is too short."""
        before, end = [*frame.before, *plain(llama, self.opening)], plain(llama, "\n\n")
        n = self.n_tokens - len(end)
        if self.words:
            listed = plain(llama, " ".join(self.words))[: n - len(before)]
            return Haystack([*before, *listed, *end], [])
        starts = [round(depth * (self.n_tokens - MARGIN)) for depth in self.depths]
        pieces = sentences(text)
        haystack = planted(llama, text.name, pieces[int(self.skip * len(pieces)) :], self.needles, starts, n, n, before)
        return Haystack([*haystack.tokens, *end], haystack.positions)


class TaskSample(Struct, frozen=True):
    """One context with its questions."""

    context: Context
    questions: tuple[Question, ...]
    n_cold: int = 0
    """Tokens of other text decoded under the mode before the first question."""
    in_turn: bool = False
    """Each question follows the previous answer, as in a chat; otherwise each is asked as if it were the only one."""


class Task(Struct, frozen=True):
    make: Callable[[Random, int, float], TaskSample]
    """Makes a sample from (random, tokens of the context, place); `place` from 0 to 1 shifts the planted sentences."""
    family: str
    """Tasks of a family get the same random numbers, so that they can share contexts."""

    def sample(self, seed: int, n_tokens: int, index: int, n_samples: int) -> TaskSample:
        """One sample; equal arguments give equal samples. The places of `n_samples` samples are spread evenly, each at random within its part."""
        random = Random(f"{seed} {self.family} {n_tokens} {index}")
        return self.make(random, n_tokens, (index + random.random()) / n_samples)


TASKS: Registry[Task] = Registry("task")


def task(name: str, description: str, source: str = "", family: str | None = None) -> Callable[[Callable], Callable]:
    """Register a function as a Task; by default it is its own family."""

    def register(make: Callable[[Random, int, float], TaskSample]) -> Callable[[Random, int, float], TaskSample]:
        TASKS.add(name, Task(make, family or name), description, source)
        return make

    return register


def spread(n: int, place: float) -> tuple[float, ...]:
    """Depths of `n` sentences, one in each n-th of the context, all shifted by `place`."""
    return tuple((i + place) / n for i in range(n))
