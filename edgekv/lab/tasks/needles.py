"""One or a few facts in a long text, and a question about one of them."""

from functools import partial
from random import Random
from uuid import UUID

from edgekv.lab.tasks.task import Blank, Context, Question, TaskSample, spread, task

RULER = "RULER: What's the Real Context Size of Your Long-Context Language Models?, arXiv:2404.06654"

CITIES = ("Paris", "Tokyo", "Cairo", "Lima", "Oslo", "Boston", "Vienna", "Sydney", "Nairobi", "Madrid", "Warsaw", "Delhi")
ADJECTIVES = ("lucky", "brave", "quiet", "amber", "silver", "gentle", "rapid", "hidden", "proud", "frozen", "golden", "clever")
NOUNS = ("otter", "falcon", "river", "stone", "maple", "tiger", "comet", "valley", "lantern", "harbor", "meadow", "violin")


@task("passkey", "one pass key in a text, at depths spread over the samples",
      "Landmark Attention: Random-Access Infinite Context Length for Transformers, arXiv:2305.16300")
def passkey(random: Random, n_tokens: int, place: float) -> TaskSample:
    key = str(random.randrange(10**4, 10**5))
    needle = f"The pass key of the vault is {key}. Remember it. {key} is the pass key of the vault."
    question = Question("What is the pass key of the vault mentioned in the text?", (Blank("The pass key of the vault is", key),))
    return TaskSample(Context(n_tokens, needles=(needle,), depths=(place,), skip=_skip(random)), (question,))


@task("lines", "eight lines of a key and a number in a text, each asked for",
      "How Long Can Open-Source LLMs Truly Promise on Context Length? (LongEval, line retrieval), 2023")
def lines(random: Random, n_tokens: int, place: float) -> TaskSample:
    keys = [f"{a}-{b}" for a, b in zip(random.sample(ADJECTIVES, 8), random.sample(NOUNS, 8))]
    values = _numbers(random, len(keys))
    context = Context(n_tokens, needles=tuple(f"The register {key} holds the value {value}." for key, value in zip(keys, values)),
                      depths=spread(len(keys), place), skip=_skip(random))
    return TaskSample(context, tuple(
        Question(f"Which value does the register {key} hold?", (Blank(f"The register {key} holds the value", value),))
        for key, value in zip(keys, values)))


@task("uuid", "two pairs of uuids in a text: the second one of a pair is asked for by its first",
      "Lost in the Middle: How Language Models Use Long Contexts, arXiv:2307.03172")
def uuid(random: Random, n_tokens: int, place: float) -> TaskSample:
    pairs = [(_uuid(random), _uuid(random)) for _ in range(2)]
    context = Context(n_tokens, needles=tuple(f"The id of {key} is {value}." for key, value in pairs),
                      depths=spread(len(pairs), place), skip=_skip(random))
    return TaskSample(context, tuple(
        Question(f"What is the id of {key}?", (Blank(f"The id of {key} is", value),), n_answer=40)
        for key, value in pairs))


def _asked_for(random: Random, n_tokens: int, place: float, n: int) -> TaskSample:
    pairs = list(zip(random.sample(CITIES, n), _numbers(random, n)))
    context = Context(n_tokens, needles=tuple(f"The magic number of {city} is {value}." for city, value in pairs), depths=spread(n, place),
                      skip=_skip(random))
    return TaskSample(context, tuple(
        Question(f"What is the magic number of {city} mentioned in the text?",
                 (Blank(f"The magic number of {city} mentioned in the text is", value),))
        for city, value in pairs))


task("niah-single", "one magic number in a text", RULER)(partial(_asked_for, n=1))
task("niah-multikey", "the magic numbers of four cities in a text, each asked for", RULER)(partial(_asked_for, n=4))


def _numbers(random: Random, n: int) -> list[str]:
    """Different numbers of four digits."""
    return [str(number) for number in random.sample(range(1000, 10000), n)]


def _uuid(random: Random) -> str:
    return str(UUID(int=random.getrandbits(128), version=4))


def _skip(random: Random) -> float:
    return random.random() / 2
