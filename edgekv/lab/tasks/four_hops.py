"""One long chain of boxes that pass on a number: which boxes hold the number from its beginning?"""

from random import Random

from edgekv.lab.tasks.needles import RULER
from edgekv.lab.tasks.task import Blank, Question, TaskSample, task
from edgekv.lab.tasks.variables import chained

N_HOPS = 4


@task("variables-4hop", "a chain of five boxes in a text (one holds a number, each other what the one before holds): all five are asked "
                        "for by the number, and the number by the last", RULER, by_default=False)
def variables_4hop(random: Random, n_tokens: int, place: float) -> TaskSample:
    ((boxes, value),), context = chained(random, n_tokens, place, 1, N_HOPS)
    before = [f"The {len(boxes)} boxes that hold the number {value} in the end are:", *[","] * (len(boxes) - 2), " and"]
    last = boxes[-1]
    return TaskSample(context, (
        Question(f"Which {len(boxes)} boxes hold the number {value} in the end?", tuple(map(Blank, before, boxes)), any_order=True,
                 one_word=True),
        Question(f"Which number does the box {last} hold in the end?", (Blank(f"In the end the box {last} holds the number", value),)),
    ))
