"""Drafts from what was said before (upstream's n-gram lookup): the same answer, in fewer steps, for any length of draft."""

import pytest
from support.clients import Endpoint
from support.local_server import options

from edgekv.config import KvOptions
from edgekv.serving.server import Server
from edgekv.vocab import KvMode

N_TOKENS = 160
REPEATING = 'root ::= ("round the river " [a-h] [a-h])+'
"""A model of random weights does not repeat itself. It chooses the two letters, where a wrong logit would show; drafts between them are
accepted."""
PROMPTS = ([5, 6, 7, 8, 9, 10, 11, 12] * 12, list(range(20, 180)) * 2, "the river and the stone and the river and the stone and the river")


def answers(model, mode: KvMode, extra: tuple[str, ...]) -> tuple[list[str], int, int]:
    """The greedy answers, tokens drafted and accepted."""
    kv = KvOptions(mode=mode, resolution=1000, exact_tokens=64)
    with Server(options(model, n_slots=2, kv=kv, extra=extra)) as server:
        replies = [Endpoint(server).complete(prompt, N_TOKENS, cache_prompt=False, grammar=REPEATING) for prompt in PROMPTS]
    drafted, accepted = (sum(reply["timings"].get(name, 0) for reply in replies) for name in ("draft_n", "draft_n_accepted"))
    return [reply["content"] for reply in replies], drafted, accepted


@pytest.fixture(scope="module")
def model(synthetic):
    return synthetic("llama", dtype="f32")


@pytest.fixture
def plain(model, single_precision) -> list[str]:
    """Without drafts. Kernels that round to bf16 would read long drafts otherwise than single tokens."""
    replies, drafted, _ = answers(model, KvMode.EXACT, ())
    assert drafted == 0 and all(len({part[:2] for part in reply.split("river ")[1:-1]}) > 1 for reply in replies), "it does choose"
    return replies


@pytest.mark.parametrize("length", [3, 15, 16, 48])
def test_drafts_change_nothing_in_mode_exact(model, plain, length):
    """The kernel of decode takes up to 16 query tokens of a stream, and the kernel of prompts takes more."""
    replies, drafted, accepted = answers(model, KvMode.EXACT, (
        "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", str(length)))
    assert replies == plain
    assert drafted >= accepted > 20, "the text repeats itself"


@pytest.mark.parametrize("length", [15, 48])
def test_drafts_in_mode_sparse(model, length):
    """The tokens of a draft sample as others do; answers have the same length, and drafts are accepted."""
    replies, drafted, accepted = answers(model, KvMode.SPARSE, (
        "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", str(length)))
    assert drafted >= accepted > 20 and all(replies)
