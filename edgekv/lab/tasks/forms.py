"""The same facts in a text, asked for in the forms of examinations, after the text or before it."""

from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from edgekv.lab.tasks.facts_in_text import facts_in_text
from edgekv.lab.tasks.task import Blank, Question, TaskSample, task
from edgekv.lab.texts.facts import Fact

Form = Callable[[Random, list[Fact]], list[Question]]
"""A form makes questions about all facts of a text."""


def _true_or_false(random: Random, facts: list[Fact]) -> list[Question]:
    """A true and a false statement about each thing; the false one is true of another thing."""
    statements = []
    for fact in facts:
        wrong = random.choice([other.value for other in facts if other != fact])
        statements += [(f"the {fact.subject} is {value}", answer) for value, answer in ((fact.value, "true"), (wrong, "false"))]
    return [Question(f"Is it true or false that {statement}?", (Blank(f"The statement that {statement} is", answer),), one_word=True,
                     chance=1 / 2)
            for statement, answer in random.sample(statements, len(statements))]


def _fill_in(random: Random, facts: list[Fact]) -> list[Question]:
    return [Question(f"Which number belongs in the gap: the {fact.subject} is ____?",
                     (Blank("The number that belongs in the gap is", fact.value),)) for fact in facts]


def _choose(random: Random, facts: list[Fact]) -> list[Question]:
    """Questions with a choice of numbers, all of which stand in the text."""
    questions = []
    for fact in facts:
        letter_of = dict(zip([other.value for other in random.sample(facts, len(facts))], "ABCDEFGH"))
        options = ", ".join(f"{letter}) {value}" for value, letter in letter_of.items())
        questions.append(Question(f"Which of these is the {fact.subject}: {options}?",
                                  (Blank("The right option is", letter_of[fact.value]),), chance=1 / len(facts)))
    return questions


def _match(random: Random, facts: list[Fact]) -> list[Question]:
    """One question about all facts."""
    values = ", ".join(fact.value for fact in random.sample(facts, len(facts)))
    asked = random.sample(facts, len(facts))
    blanks = [Blank(("\n" if i else "") + f"{fact.subject}:", fact.value) for i, fact in enumerate(asked)]
    return [Question(f"Which of the numbers {values} belongs to which of these: {', '.join(fact.subject for fact in asked)}?",
                     tuple(blanks), chance=1 / len(facts))]


FORMS: dict[str, tuple[str, Form]] = {
    "true-false": ("four facts in a text: of each one statement that is true and one that is false", _true_or_false),
    "fill-in": ("four facts in a text: sentences with a gap for the number", _fill_in),
    "choose": ("four facts in a text: one of four numbers, by its letter", _choose),
    "match": ("four facts in a text: numbers to be put beside what they belong to", _match),
}


def _register(name: str, description: str, form: Form) -> None:
    @task(name, f"{description}; asked after the text", family="facts", by_default=False)
    def after(random: Random, n_tokens: int, place: float) -> TaskSample:
        facts, context = facts_in_text(random, n_tokens, place)
        return TaskSample(context, tuple(form(random, facts)))

    @task(f"{name}-first", f"{description}; one question stands before the text, and after it only the beginning of the answer",
          family="facts", by_default=False)
    def before(random: Random, n_tokens: int, place: float) -> TaskSample:
        facts, context = facts_in_text(random, n_tokens, place)
        questions = form(random, facts)
        question = questions[int(place * len(questions))]
        context = replace(context, opening=f"{question.asked} Find the answer in this text.\n\n")
        return TaskSample(context, (replace(question, asked=""),), question_in_context=True)


for _name, (_description, _form) in FORMS.items():
    _register(_name, _description, _form)
