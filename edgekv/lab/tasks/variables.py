"""Boxes that hold a number or another box's content: variables that get their values from each other."""

from itertools import pairwise
from random import Random

from edgekv.lab.tasks.needles import RULER
from edgekv.lab.tasks.task import Blank, Context, Question, TaskSample, spread, task
from edgekv.lab.tasks.words import WORDS

N_CHAINS, N_HOPS = 2, 2


@task("variables", "chains of boxes in a text (one holds a number, the next what that one holds); each link is asked for, and the "
                   "number at the end of each chain", RULER)
def variables(random: Random, n_tokens: int, place: float) -> TaskSample:
    names = random.sample(WORDS[:16], N_CHAINS * (N_HOPS + 1))
    chains = [names[i::N_CHAINS] for i in range(N_CHAINS)]
    values = [str(value) for value in random.sample(range(10000, 100000), N_CHAINS)]
    links = [[f"The box {chain[0]} holds the number {value}.",
              *(f"The box {to} holds what the box {of} holds." for of, to in pairwise(chain))]
             for chain, value in zip(chains, values)]
    needles = tuple(link for same_place in zip(*links) for link in same_place)
    questions = []
    for chain, value in zip(chains, values):
        questions.append(_ask(chain[0], "holds the number", value))
        questions += [_ask(to, "holds what the box", of) for of, to in pairwise(chain)]
        questions.append(_ask(chain[-1], "holds what other boxes hold, and in the end that is the number", value))
    context = Context(n_tokens, needles=needles, depths=spread(len(needles), place), skip=random.random() / 2)
    return TaskSample(context, tuple(questions))


def _ask(name: str, begins: str, expected: str) -> Question:
    return Question(f"What does the box {name} hold?", (Blank(f"The box {name} {begins}", expected),), one_word=True)
