"""A haystack made of needles: every sentence has the form of the wanted ones, but is about another thing."""

from random import Random

from edgekv.lab.tasks.needles import ADJECTIVES, RULER
from edgekv.lab.tasks.task import Blank, Context, Question, TaskSample, spread, task
from edgekv.lab.tasks.words import WORDS

N_ASKED = 4

LEAST_TOKENS = 8
"""Fewest tokens of a sentence in any model: a number of sentences computed from it always fills the context."""


@task("niah-needles", "a text of nothing but magic numbers, each of another thing: four of them are asked for", RULER, by_default=False)
def niah_needles(random: Random, n_tokens: int, place: float) -> TaskSample:
    n_names = len(ADJECTIVES) * len(WORDS) * (len(WORDS) - 1)
    n = min(n_names, n_tokens // LEAST_TOKENS + N_ASKED)
    names = [_name(number) for number in random.sample(range(n_names), n)]
    values = [str(value) for value in random.sample(range(10000, 100000), n)]
    said = [f"The magic number of the {name} is {value}." for name, value in zip(names, values)]
    context = Context(n_tokens, needles=tuple(said[:N_ASKED]), depths=spread(N_ASKED, place),
                      filler=tuple(sentence + "\n\n" for sentence in said[N_ASKED:]))
    return TaskSample(context, tuple(
        Question(f"What is the magic number of the {name} mentioned in the text?",
                 (Blank(f"The magic number of the {name} mentioned in the text is", value),))
        for name, value in zip(names[:N_ASKED], values)))


def _name(number: int) -> str:
    """A name for each number: an adjective and two different words."""
    number, adjective = divmod(number, len(ADJECTIVES))
    first, second = divmod(number, len(WORDS) - 1)
    return f"{ADJECTIVES[adjective]} {WORDS[first]} {WORDS[second + (second >= first)]}"
