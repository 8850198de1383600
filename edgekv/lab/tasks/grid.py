"""One needle at each depth of contexts of each length."""

from random import Random

from msgspec.structs import replace

from edgekv.lab.tasks.needles import niah_single
from edgekv.lab.tasks.task import TaskSample, task

N_DEPTHS = 5
"""Rows of the grid: a needle stands somewhere in each fifth of the context."""


@task("needle-grid", f"one magic number in a text, in each of {N_DEPTHS} parts of it: shown by depth and length",
      "Needle In A Haystack - Pressure Testing LLMs, G. Kamradt, 2023", n_places=N_DEPTHS, by_default=False)
def needle_grid(random: Random, n_tokens: int, place: float) -> TaskSample:
    sample = niah_single(random, n_tokens, place)
    return replace(sample, questions=tuple(replace(question, depth=place) for question in sample.questions))
