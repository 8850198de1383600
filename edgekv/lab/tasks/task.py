"""What a task is: contexts, questions about them, and how answers are graded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from edgekv.lab.texts.facts import first_number
from edgekv.lab.texts.frame import Frame, plain
from edgekv.lab.texts.haystack import MARGIN, Haystack, planted, sentences
from edgekv.lab.texts.text import Text
from edgekv.llama import Llama
from edgekv.registry import Registry


@dataclass(frozen=True)
class Blank:
    """A gap in the answer: what stands before it is given, the model fills it in."""

    before: str
    expected: str


@dataclass(frozen=True)
class Question:
    """What is asked, and the answer with its gaps. Each gap is an item of its own."""

    asked: str
    blanks: tuple[Blank, ...]
    any_order: bool = False
    """An expected item counts wherever it was filled in."""
    one_word: bool = False
    """A gap ends at the first space; otherwise only where a clause ends."""
    n_answer: int = 12
    """Tokens of a gap, at most."""
    chance: float = 0.0
    """Share of its gaps that a blind guess fills in rightly."""
    depth: float | None = None
    """Where in the context the answer stands, as a share; such answers make a grid of depth by length."""

    def grade(self, answers: Sequence[str]) -> tuple[bool, ...]:
        """For each expected item whether it was found; `answers` are what stands in the gaps, in their order."""
        if self.any_order:
            return tuple(any(is_right(blank.expected, answer) for answer in answers) for blank in self.blanks)
        return tuple(is_right(blank.expected, answer) for blank, answer in zip(self.blanks, answers, strict=True))


def is_right(expected: str, answer: str) -> bool:
    """For a number: the first number of the answer is it, to the digit. Else the answer begins with it and goes on with something
    that is no letter, digit or hyphen; case and quotation marks do not matter."""
    if expected.isdigit():
        return first_number(answer) == expected
    said, wanted = (text.strip().strip("\"'`*<[(").casefold() for text in (answer, expected))
    return said.startswith(wanted) and not (said[len(wanted) :][:1].isalnum() or said[len(wanted) :][:1] == "-")


@dataclass(frozen=True)
class Context:
    """What is read before anything is asked: the beginning of the user's turn. Equal contexts are read once for all their
    tasks."""

    n_tokens: int
    opening: str = ""
    needles: tuple[str, ...] = ()
    """Planted in natural text."""
    depths: tuple[float, ...] = ()
    """Where each stands, as shares of the context, ascending: it begins after the sentence that stands there."""
    skip: float = 0.0
    """Where in the text it begins, as a share of its sentences."""
    words: tuple[str, ...] = ()
    """In place of text: as many of them as fit."""
    filler: tuple[str, ...] = ()
    """In place of the text's sentences, each with the white space after it: as many of them as fit."""

    def build(self, llama: Llama, frame: Frame, text: Text) -> Haystack:
        """`n_tokens` tokens, the frame's beginning included; the last ones end the paragraph. Raises ConfigError where the text
        has too little."""
        before, end = [*frame.before, *plain(llama, self.opening)], plain(llama, "\n\n")
        n = self.n_tokens - len(end)
        if self.words:
            listed = plain(llama, " ".join(self.words))[: n - len(before)]
            return Haystack([*before, *listed, *end], [])
        starts = [round(depth * (self.n_tokens - MARGIN)) for depth in self.depths]
        pieces = self.filler or sentences(text)
        name = "what this task is made of" if self.filler else text.name
        haystack = planted(llama, name, pieces[int(self.skip * len(pieces)) :], self.needles, starts, n, n, before)
        return Haystack([*haystack.tokens, *end], haystack.positions)


@dataclass(frozen=True)
class TaskSample:
    """One context and what is asked of it."""

    context: Context
    questions: tuple[Question, ...]
    n_cold: int = 0
    """Tokens of other text that are decoded under the mode before the first question."""
    in_turn: bool = False
    """Each question follows the answer to the one before, as in a chat; otherwise each is asked as if it were the only one."""
    question_in_context: bool = False


@dataclass(frozen=True)
class Task:
    make: Callable[[Random, int, float], TaskSample]
    """From (random, tokens of the context, place): `place` from 0 to 1 shifts where things are planted."""
    family: str
    """Tasks of a family get the same random numbers, so that they can share contexts."""
    n_places: int = 1
    """Contexts that are made where one is asked for, each with a place of its own."""
    by_default: bool = True
    """Whether it is asked where no task is named; what takes long or goes beyond small models is not."""

    def samples(self, seed: int, n_tokens: int, index: int, n_samples: int) -> list[TaskSample]:
        """What one of `n_samples` contexts comes to: as many as the task has places."""
        first, n = index * self.n_places, n_samples * self.n_places
        return [self.sample(seed, n_tokens, i, n) for i in range(first, first + self.n_places)]

    def sample(self, seed: int, n_tokens: int, index: int, n_samples: int) -> TaskSample:
        """The same for the same numbers. The places of `n_samples` samples are spread evenly, each somewhere in its part."""
        random = Random(f"{seed} {self.family} {n_tokens} {index}")
        return self.make(random, n_tokens, (index + random.random()) / n_samples)


TASKS: Registry[Task] = Registry("task")


def task(name: str, description: str, source: str = "", family: str | None = None, **settings: Any) -> Callable[[Callable], Callable]:
    """Registers a function as a Task with these settings of it; its family is its own unless another is named."""

    def register(make: Callable[[Random, int, float], TaskSample]) -> Callable[[Random, int, float], TaskSample]:
        TASKS.add(name, Task(make, family or name, **settings), description, source)
        return make

    return register


def default_tasks() -> tuple[str, ...]:
    """Those that are asked where none is named."""
    return tuple(name for name in TASKS if TASKS.get(name).by_default)


def spread(n: int, place: float) -> tuple[float, ...]:
    """Depths of `n` sentences, one in each n-th of the context, all of them shifted by `place`."""
    return tuple((i + place) / n for i in range(n))
