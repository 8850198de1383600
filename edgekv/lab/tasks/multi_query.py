"""Several facts in a long text, asked for in one question."""

from random import Random

from edgekv.lab.tasks.needles import RULER, magic_numbers
from edgekv.lab.tasks.task import Blank, Question, TaskSample, task

N_CITIES = 4


@task("niah-multiquery", "the text of niah-multikey: the magic numbers of its four cities, asked for in one question", RULER,
      family="niah-multikey", by_default=False)
def niah_multiquery(random: Random, n_tokens: int, place: float) -> TaskSample:
    pairs, context = magic_numbers(random, n_tokens, place, N_CITIES)
    cities = [city for city, _ in pairs]
    blanks = [Blank(f"{'. ' if i else ''}The magic number of {city} mentioned in the text is", value)
              for i, (city, value) in enumerate(pairs)]
    return TaskSample(context, (Question(f"What are the magic numbers of {', '.join(cities[:-1])} and {cities[-1]} mentioned in the text?",
                                     tuple(blanks)),))
