"""One thing with several numbers at different places of a long text: one question asks for all."""

from random import Random

from edgekv.lab.tasks.needles import CITIES, RULER, numbers
from edgekv.lab.tasks.task import Blank, Context, Question, TaskSample, spread, task

N_VALUES = 4


@task("niah-multivalue", "four magic numbers of one city in a text, asked for at once", RULER, by_default=False)
def niah_multivalue(random: Random, n_tokens: int, place: float) -> TaskSample:
    city, values = random.choice(CITIES), numbers(random, N_VALUES)
    context = Context(n_tokens, needles=tuple(f"One of the magic numbers of {city} is {value}." for value in values),
                      depths=spread(N_VALUES, place), skip=random.random() / 2)
    before = [f"The {N_VALUES} magic numbers of {city} mentioned in the text are:", *[","] * (N_VALUES - 2), " and"]
    question = Question(f"What are the {N_VALUES} magic numbers of {city} mentioned in the text?",
                        tuple(map(Blank, before, values)), any_order=True, one_word=True)
    return TaskSample(context, (question,))
