"""The same facts in a text, asked for in different ways."""

from functools import partial
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from edgekv.lab.tasks.task import Blank, Context, Question, TaskSample, spread, task

N_FACTS = 4
"""Facts in one context: more of them confuse a small model even with full attention."""

N_COLD = 500

SUBJECTS = (
    "magic number of Paris", "code of the garage door", "number of the flight to Tokyo", "password of the old computer",
    "number of Peter's locker", "lucky number of Maria", "serial number of the piano", "postal code of Greenfield",
    "room number of Doctor Lee", "price of the red bicycle", "combination of the safe", "population of Willowbrook",
    "number of the train to Vienna", "account number of Mr. Harris", "PIN of Anna's card", "phone number of the Boston bakery",
)
"""The subjects of facts, each in words of its own."""


class Fact(Struct, frozen=True):
    subject: str
    value: str

    @property
    def sentence(self) -> str:
        return f"The {self.subject} is {self.value}."

    @property
    def asked(self) -> str:
        return f"What is the {self.subject}?"

    @property
    def beginning(self) -> str:
        """The beginning of the answer."""
        return f"The {self.subject} is"


def _sample(random: Random, n_tokens: int, place: float, n_cold: int = 0, in_turn: bool = False) -> TaskSample:
    facts, context = _facts_in_text(random, n_tokens, place)
    return TaskSample(context, tuple(_question(fact, fact.asked) for fact in facts), n_cold, in_turn)


task("question-last", "four facts in a text, each asked for after it", family="facts")(_sample)


@task("question-first", "one fact in a text; the question stands before it, and after it only the beginning of the answer",
      family="facts")
def question_first(random: Random, n_tokens: int, place: float) -> TaskSample:
    facts, context = _facts_in_text(random, n_tokens, place)
    fact = facts[int(place * N_FACTS) % N_FACTS]
    asked_first = replace(context, opening=f"{fact.asked} Find the answer in this text.\n\n")
    return TaskSample(asked_first, (_question(fact, ""),))


task("after-cold", f"four facts in a text, asked for after {N_COLD} tokens of other text", family="facts")(partial(_sample, n_cold=N_COLD))
task("several", "four facts in a text, asked for in turn in one chat", family="facts")(partial(_sample, in_turn=True))


def _facts_in_text(random: Random, n_tokens: int, place: float) -> tuple[list[Fact], Context]:
    """N_FACTS facts, and a context with the facts planted in it."""
    facts = [Fact(subject, str(value)) for subject, value in
             zip(random.sample(SUBJECTS, N_FACTS), random.sample(range(1000, 10000), N_FACTS))]
    return facts, Context(n_tokens, needles=tuple(fact.sentence for fact in facts), depths=spread(N_FACTS, place),
                          skip=random.random() / 2)


def _question(fact: Fact, asked: str) -> Question:
    return Question(asked, (Blank(fact.beginning, fact.value),))
