"""Lists of words in which some are frequent."""

from random import Random

from edgekv.lab.tasks.needles import RULER
from edgekv.lab.tasks.task import Blank, Context, Question, TaskSample, task

WORDS = (
    "apple", "window", "guitar", "forest", "pencil", "rocket", "bottle", "market", "tunnel", "island", "pepper", "saddle", "mirror",
    "ladder", "cotton", "helmet", "button", "kitten", "planet", "winter", "garden", "thunder", "blanket", "cookie", "dinner",
    "engine", "feather", "goblin", "hammer", "insect", "jacket", "kettle", "lemon", "magnet", "napkin", "orange", "parrot",
    "quartz", "ribbon", "sailor",
)
SYLLABLES = ("ka", "lo", "mi", "ne", "ru", "ta", "vo", "zi", "pe", "gu", "fa", "shi")

N_COMMON = 3
N_FREQUENT = 3
ZETA = 2.0
"""RULER's exponent: the k-th most frequent word is k^-2 times as frequent as the first."""


@task("common-words", "a list of words; the three that come ten times as often as the others are asked for", RULER)
def common_words(random: Random, n_tokens: int, place: float) -> TaskSample:
    words = random.sample(WORDS, len(WORDS))
    common, others = words[:N_COMMON], words[N_COMMON:]
    # in rounds, so that the counts are right wherever the list is cut; each other word has ten rounds
    listed: list[str] = []
    while len(listed) < n_tokens:
        n_others = len(others) // 10
        part = common + [others[(len(listed) // (N_COMMON + n_others) * n_others + i) % len(others)] for i in range(n_others)]
        listed += random.sample(part, len(part))
    return TaskSample(Context(n_tokens, "Here is a list of words: ", words=tuple(f"{word}," for word in listed)),
                  (_ask("most common", common),))


@task("frequent-words", "a list of made-up words; the three most frequent ones are asked for", RULER)
def frequent_words(random: Random, n_tokens: int, place: float) -> TaskSample:
    words = list(dict.fromkeys("".join(random.choices(SYLLABLES, k=3)) for _ in range(64)))[:40]
    share = [(rank + 1) ** -ZETA for rank in range(len(words))]
    owed, listed = [0.0] * len(words), list[str]()
    while len(listed) < n_tokens:  # in rounds, as above: each word catches up with its share
        part = []
        for rank, word in enumerate(words):
            owed[rank] += 40 * share[rank] / sum(share)
            part += [word] * int(owed[rank])
            owed[rank] -= int(owed[rank])
        listed += random.sample(part, len(part))
    return TaskSample(Context(n_tokens, "Here is a list of made-up words: ", words=tuple(f"{word}," for word in listed)),
                  (_ask("most frequent", words[:N_FREQUENT]),))


def _ask(which: str, words: list[str]) -> Question:
    numbered = [Blank(f"The {len(words)} {which} words are:\n1." if i == 0 else f"\n{i + 1}.", word)
                for i, word in enumerate(words)]
    return Question(f"What are the {len(words)} {which} words in the list above?", tuple(numbered), any_order=True, one_word=True)
