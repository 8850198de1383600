"""Drafts, EdgeKV's and upstream's: the same answer, in fewer steps."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients import Endpoint
from support.local_server import options
from support.native_build import needs, program

from edgekv._native import testing
from edgekv.common.enums import Drafting, KvMode
from edgekv.common.errors import ConfigError, ModelError
from edgekv.config import KvOptions
from edgekv.models import Geometry
from edgekv.models.geometry import open_model
from edgekv.server.drafts import check_draft_model, chosen_draft, drafting
from edgekv.server.server import Server

N_TOKENS = 160
REPEATING = 'root ::= ("round the river " [a-h] [a-h])+'
"""A model of random weights does not repeat itself. It chooses the two letters, where a wrong logit would show; drafts between them are
accepted."""
PROMPTS = ([5, 6, 7, 8, 9, 10, 11, 12] * 12, list(range(20, 180)) * 2, "the river and the stone and the river and the stone and the river")


def answers(model, mode: KvMode, extra: tuple[str, ...] = (), draft: Drafting | Path | None = Drafting.OFF,
            grammar: str = REPEATING) -> tuple[list[str], int, int]:
    """The greedy answers, tokens drafted and accepted."""
    kv = KvOptions(mode=mode, sample_budget=1000, exact_tokens=64)
    with Server(options(model, n_slots=2, kv=kv, extra=extra, draft=draft)) as server:
        replies = [Endpoint(server).complete(prompt, N_TOKENS, cache_prompt=False, grammar=grammar) for prompt in PROMPTS]
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


# ---- EdgeKV's own guesses ---------------------------------------------------------------------------------------------------------


@needs()
def test_what_is_guessed(tmp_path):
    sources = ["checkout/tests/server/drafts.cpp", "checkout/native/server/scheduling/drafts.cpp"]
    drafts = program(tmp_path, "drafts", sources, "-Icheckout/native", "-Icheckout/native/include")
    assert subprocess.run([drafts], capture_output=True, text=True).stdout == ""


def test_guesses_change_nothing(model, plain):
    replies, drafted, accepted = answers(model, KvMode.EXACT, draft=None)
    assert replies == plain and drafted >= accepted > 0, "how many depends on what a step takes here"


@pytest.fixture
def our_products() -> Iterator[None]:
    """Whatever was measured to be fastest on this machine."""
    testing.use_products(True)
    yield
    testing.use_products(None)


@pytest.mark.usefixtures("our_products")
@pytest.mark.parametrize("mode", [KvMode.EXACT, KvMode.SPARSE])
def test_guesses_change_no_bit_of_quantised_weights(default_model, mode):
    """Up to four tokens of a step have the bits that each gets alone."""
    text = "The river runs round the stone, and the stone lies in the river. " * 6
    replies, n_drafted = [], []
    for draft in (Drafting.OFF, Drafting.NGRAM):
        with Server(options(default_model, kv=KvOptions(mode=mode), draft=draft)) as server:
            asked = [Endpoint(server).complete(text, 60, n_probs=3), Endpoint(server).complete(f"Say it again. {text}", 60)]
        replies.append([reply["content"] for reply in asked])
        n_drafted.append(sum(reply["timings"].get("draft_n_accepted", 0) for reply in asked))
    assert replies[0] == replies[1] and n_drafted[0] == 0 < n_drafted[1]


# ---- a draft model ----------------------------------------------------------------------------------------------------------------


def test_a_draft_model_changes_nothing(model, single_precision):
    """The model itself, which is always right but for rounding."""
    plain, _, _ = answers(model, KvMode.EXACT, grammar="")
    replies, drafted, accepted = answers(model, KvMode.EXACT, draft=model, grammar="")
    assert replies == plain and drafted >= accepted > 20


def test_a_draft_model_has_the_same_vocabulary(default_model, model, tmp_path):
    check_draft_model(default_model, default_model)
    with pytest.raises(ModelError, match=rf"^{model.name} has another vocabulary than {default_model.name} .* a smaller model of the same family$"):
        Server(options(default_model, draft=model))
    with pytest.raises(ModelError, match="there is no file"):
        Server(options(default_model, draft=tmp_path / "none.gguf"))


def test_where_drafts_come_from(synthetic):
    plain, recurrent = (open_model(synthetic(kind)).geometry for kind in ("llama", "lfm2"))
    assert chosen_draft("ngram-text", None) is Drafting.NGRAM and chosen_draft("none", None) is Drafting.OFF and chosen_draft(None, Path("a")) == Path("a")
    def chosen(mode: KvMode, on_host: bool, geometry: Geometry, extra: tuple[str, ...], draft: Drafting | Path | None = None) -> Drafting | Path:
        return drafting(options(geometry.path, kv=KvOptions(mode=mode), extra=extra, draft=draft), geometry, on_host)

    for mode, on_host, geometry, extra, expected in (
            (KvMode.EXACT, True, plain, (), Drafting.NGRAM), (KvMode.SPARSE, True, plain, ("--slots", "2"), Drafting.NGRAM),
            (KvMode.OFF, True, plain, (), Drafting.OFF), (KvMode.EVICT, True, plain, (), Drafting.OFF),
            (KvMode.EXACT, False, plain, (), Drafting.OFF), (KvMode.EXACT, True, recurrent, (), Drafting.OFF),
            (KvMode.EXACT, True, plain, ("--spec-type", "ngram-mod"), Drafting.OFF), (KvMode.EXACT, True, plain, ("-md", "d.gguf"), Drafting.OFF),
            (KvMode.EXACT, True, plain, ("--mmproj", "p.gguf"), Drafting.OFF)):
        assert chosen(mode, on_host, geometry, extra) is expected, (mode, on_host, extra)
    assert chosen(KvMode.OFF, False, recurrent, (), Drafting.NGRAM) is Drafting.NGRAM, "who asks gets it"
    for wanted in (Drafting.NGRAM, Path("d.gguf")):
        with pytest.raises(ConfigError, match="--spec-type and --model-draft do not go with mode evict"):
            chosen(KvMode.EVICT, True, plain, (), wanted)
