"""A prompt begins with rows of a conversation that comes back, of another slot or of another server; sampled rows serve a server that
samples alike."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.calls import Held
from support.clients import Endpoint, post, send, shown_at, until
from support.prefix_server import EXACT, SPARSE, ask, conversation, from_disk, keep, n_read, serve, sources

from edgekv.common.enums import CacheCodec, CacheType
from edgekv.config import LayerTypes
from edgekv.prefix_cache import digests
from edgekv.prefix_cache.listing import list_chains
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.runtime.cells import EARLIER, ROUNDED, SAMPLED
from edgekv.server import identities

Q8, Q4 = CacheType.Q8_0, CacheType.Q4_0
N_WHOLE = 512
"""Tokens of the whole blocks of a prompt of 600; prompts are read exactly."""

# ---- conversations that come back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", [{"mode": "off"}, EXACT, SPARSE], ids=["off", "exact", "sparse"])
def test_conversations_that_take_turns_are_read_once(tiny, kv):
    """Three conversations share one slot, and the answers are those of a server that reads everything again."""
    turns = [(seed, length) for length in (500, 530, 700) for seed in range(3)]
    with serve(tiny, kv) as server:
        grown = {seed: [] for seed in range(3)}
        kept = []
        for seed, length in turns:
            prompt = grown[seed] + conversation(seed, length)[len(grown[seed]):]
            answer = ask(server, prompt)
            assert n_read(answer) - (len(prompt) - len(grown[seed])) in (0, -1)  # all of them begin with one token
            kept.append((prompt, answer["tokens"]))
            grown[seed] = prompt + answer["tokens"][:-1]
        (stats,) = server.prefixes.stats()
        assert stats.ram.hit_tokens > 3 * 1000 and stats.n_dropped == 0
        assert server.runtime.tokens.arrivals.can_wait == (kv["mode"] != "off"), "stock nodes wait for no rows"
    if kv is not SPARSE:  # a sample of one text differs with the tokens decoded before
        with serve(tiny, kv, store=None) as server:
            for prompt, tokens in kept:
                assert ask(server, prompt, cache_prompt=False)["tokens"] == tokens


@pytest.mark.parametrize("kv", [{"mode": "off"}, EXACT, SPARSE], ids=["off", "exact", "sparse"])
def test_the_keys_of_an_index_come_back_with_the_rows(synthetic, tmp_path, kv):
    """From RAM, and from disk behind a restart with other numbers of slots and cells: the same bits as in the slot that computed them."""
    model, where, tokens = synthetic("deepseek32", dtype="f32"), StoreSettings(ram_bytes=64 << 20, folder=tmp_path), conversation(7, 1500)

    def chances(server, slot: int = 0) -> np.ndarray:
        answer = ask(server, tokens, n_probs=1, id_slot=slot)
        assert n_read(answer) == 1
        return np.array([(one["id"], one["logprob"]) for one in answer["completion_probabilities"]])

    with serve(model, kv, where) as server:
        assert n_read(ask(server, tokens)) == len(tokens)
        stayed = chances(server)
        ask(server, conversation(9, 900))
        np.testing.assert_array_equal(chances(server), stayed)
        server.prefixes.flush()
    with serve(model, kv, where, n_ctx=4096, n_slots=2) as server:
        np.testing.assert_array_equal(chances(server, 1), stayed)
        assert server.prefixes.stats()[0].disk.hit_tokens >= len(tokens) - 1


@pytest.fixture(scope="module")
def kept_sample(synthetic, tmp_path_factory) -> tuple[Path, list[int]]:
    """A folder with a conversation whose answer was sampled, and its tokens."""
    folder, prompt = tmp_path_factory.mktemp("sampled"), conversation(3, 600)
    (answer,) = keep(synthetic("llama", n_head=6, dtype="f32"), SPARSE, StoreSettings(folder=folder), prompt, n=30)
    return folder, [*prompt, *answer["tokens"][:-1]]


@pytest.fixture
def sampled(kept_sample, tmp_path) -> tuple[StoreSettings, list[int]]:
    """The same, in a folder of its own."""
    folder, longer = kept_sample
    return StoreSettings(folder=shutil.copytree(folder, tmp_path / "sampled")), longer


def test_what_a_sample_read_is_not_taken_for_exact(tiny, sampled):
    where, longer = sampled
    for kv in (SPARSE, SPARSE | {"error_every": 0}):  # that setting changes reports only
        assert from_disk(tiny, kv, where, longer) == len(longer)
    assert from_disk(tiny, EXACT, where, longer) == N_WHOLE, "the blocks of the prompt, which was read exactly"


def test_rounded_rows_are_taken_where_they_may(tiny, tmp_path):
    """By default in mode sparse alone; what is computed behind them does not pass for exact either."""
    prompt, rounding = conversation(6, 700), StoreSettings(folder=tmp_path, codec=CacheCodec.ROUND)
    longer = prompt + conversation(7, 400)
    assert from_disk(tiny, EXACT, rounding, prompt) == 0
    assert {path.suffix for path in tmp_path.rglob("*.kv*")} == {".kvr"}
    with serve(tiny, SPARSE, StoreSettings(folder=tmp_path)) as server:
        assert sources(server, longer)["disk"] == 700
        labels = server.runtime.cells.stream().labels
        assert (labels[:700] & ROUNDED).all() and not (labels[700:] & ROUNDED).any()
        server.prefixes.flush()
    assert from_disk(tiny, EXACT, StoreSettings(folder=tmp_path), longer) == 0
    assert from_disk(tiny, SPARSE, StoreSettings(folder=tmp_path, codec=CacheCodec.NONE), prompt) == 700, "the exact server has read them meanwhile"


def test_other_types_are_other_rows(synthetic, tmp_path):
    """Also of one layer, and people read the types in their name."""
    path, where, prompt = synthetic("llama", n_layer=3, dtype="f32"), StoreSettings(folder=tmp_path), conversation(4, 300)

    def found(*extra: str, **types: object) -> int:
        return from_disk(path, EXACT | types, where, prompt, extra=extra)

    q4, k_alone = {"type_k": "q4_0", "type_v": "q4_0"}, {"type_k": "q4_0"}
    by_layer = [q4 | {"layer_types": LayerTypes(k, (Q4, Q4, Q8))} for k in ((Q8, Q4, Q4), (Q4, Q8, Q4))]
    all_types = [{}, q4, k_alone, *by_layer]
    assert [found(**types) for types in all_types] == [0] * 5 and found("--rope-scaling", "linear", "--rope-scale", "2") == 0
    assert [found(**types) for types in all_types] == [300] * 5
    named = ["", " (q4_0/q4_0)", " (q4_0/f16)", " (K q8_0 in 1 of 3 layers, V in 1, else q4_0)"]
    assert {chain.name for chain in list_chains(tmp_path)} == {path.stem + types for types in named}


# ---- one store for the files of a model -----------------------------------------------------------------------------------------


def test_no_prompt_waits_for_the_digest_of_a_large_model(tiny, monkeypatch: pytest.MonkeyPatch, caplog):
    """Prompts before its end are read and not kept; the start waits for it, and the log says for what."""
    digest = Held(monkeypatch, digests, "digest_of_model")
    monkeypatch.setattr(identities, "LONG_S", 0.01)
    server = serve(tiny, n_slots=1)
    with ThreadPoolExecutor(1) as pool:
        starts = pool.submit(server.start)
        until(lambda: "is read once" in caplog.text)
        usage = send(server.url, "/v1/completions", {"prompt": conversation(1, 300), "max_tokens": 1}).body["usage"]["edgekv"]
        assert usage["prefix_cache"]["reason"] == "model_unknown" and not server.prefixes.stats() and not starts.done()
        Endpoint(server).seconds_until_idle(60)  # it is over, and was not kept
        digest.go_on.set()
        starts.result(60)
    with server:
        assert sources(server, conversation(2, 300))["slot"] == 1 and sources(server, conversation(1, 300))["ram"] == 0
        sources(server, conversation(2, 300))
        assert sources(server, conversation(1, 300))["ram"] == 299


def test_a_context_that_is_loaded_again_has_the_same_store(tiny):
    with serve(tiny, extra=("--sleep-idle-seconds", "1")) as server:
        sources(server, conversation(1, 300))
        until(lambda: shown_at(server, "/props")["is_sleeping"])
        assert sources(server, conversation(1, 300))["ram"] == 300
        assert len(server.prefixes.stats()) == 1


# ---- slots -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("single_precision")
def test_a_beginning_that_all_share_is_read_once(tiny):
    """Eight requests with the same system prompt come at the same time."""
    common = conversation(5, 1024)
    prompts = [common + conversation(50 + i, 40)[1:] for i in range(8)]
    with serve(tiny, n_slots=8) as server, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: ask(server, prompt), prompts))
        assert sum(map(n_read, answers)) < 1024 + 8 * 300
        (stats,) = server.prefixes.stats()
        n_kept = stats.ram.n_bytes / sum(map(sum, server.runtime.tokens.row_bytes()))
        assert n_kept < 1024 + 8 * 60  # the common part once, and each prompt's own
    with serve(tiny, n_slots=1, store=None) as server:
        for prompt, answer in zip(prompts, answers):
            assert ask(server, prompt, cache_prompt=False)["tokens"] == answer["tokens"]


def test_prompts_of_one_request_are_read_once(tiny):
    """Both fit into the first batch. The second waits until the first has computed the whole blocks that it begins with, and takes the whole groups
    of cells that are there by then; where a busy machine lets the first end before, its last block is kept too, and serves all 600 tokens."""
    prompts = [conversation(8, 600) + [300 + i] * 20 for i in range(2)]
    with serve(tiny, n_slots=2) as server:
        answers = post(server.url, "/completion", {"prompt": prompts, "n_predict": 4, "temperature": 0})
    assert sorted(map(n_read, answers)) in ([620 - 9 * 64, 620], [620 - 2 * 256, 620], [20, 620])


def test_slots_of_one_cache_share_cells(tiny):
    common = conversation(6, 600)
    with serve(tiny, n_slots=4, extra=("--kv-unified",), store=None) as server:
        alone = ask(server, common, id_slot=0)
        used = server.runtime.memory().n_cells_used
        for slot in (1, 2, 3):
            more = common + conversation(60 + slot, 20)[1:]
            answer = ask(server, more, id_slot=slot)
            assert n_read(answer) == 19 + 600 % 64, "whole groups are shared"
        assert server.runtime.memory().n_cells_used <= used + 3 * (19 + 600 % 64 + 8)
        assert ask(server, common, id_slot=2)["tokens"] == alone["tokens"]


def test_tokens_that_were_moved_are_not_kept(tiny):
    """A context shift leaves K and V that do not follow from their tokens alone."""
    prompt = conversation(8, 400)
    with serve(tiny, n_ctx=512, extra=("--context-shift",)) as server:
        shifted = ask(server, prompt, 300, n_keep=100)
        assert shifted["truncated"]
        ask(server, conversation(9, 300))
        again = ask(server, prompt, 4)
        assert again["timings"]["cache_n"] == 256 and again["tokens"] == shifted["tokens"][:4]  # a block from before the shift
        moved = ask(server, prompt[:100] + prompt[250:], 4)
        assert moved["timings"]["cache_n"] == 100


# ---- settings of a sample --------------------------------------------------------------------------------------------


OTHERS = {"resolution": {"sample_budget": 20.0}, "sinks": {"sink_tokens": 32}, "newest": {"recent_tokens": 32}, "whole": {"exact_tokens": 320},
          "policy": {"policy": "ema"}}


@pytest.mark.parametrize("name", OTHERS)
def test_what_was_sampled_with_other_settings_is_not_taken(tiny, sampled, name):
    where, longer = sampled
    assert from_disk(tiny, SPARSE | OTHERS[name], where, longer) == N_WHOLE


def test_what_was_sampled_for_another_error_is_not_taken(tiny, tmp_path, monkeypatch):
    """The resolutions of the heads count: they are the same after a restart, and others for another error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    where, prompt = StoreSettings(folder=tmp_path / "store"), conversation(3, 600)
    some = {name: value for name, value in SPARSE.items() if name != "sample_budget"}
    (answer,) = keep(tiny, some | {"target_error": 0.05}, where, prompt, n=30)
    longer = [*prompt, *answer["tokens"][:-1]]
    assert from_disk(tiny, some | {"target_error": 0.05}, where, longer) == len(longer)
    for other in ({"target_error": 0.02}, {"sample_budget": 2000.0}):
        assert from_disk(tiny, some | other, where, longer) == N_WHOLE


def test_sparse_prompts_have_a_resolution_too(tiny, tmp_path):
    where, prompt = StoreSettings(folder=tmp_path), conversation(4, 2600)
    sparse = SPARSE | {"prompts": "sparse", "prompt_sample_budget": 20.0}

    def found(kv: dict) -> int:
        return from_disk(tiny, kv, where, prompt, n_ctx=4096)

    assert found(sparse) == 0
    n_finer = found(sparse | {"prompt_sample_budget": 30.0})
    assert n_finer < len(prompt)
    assert found(sparse) == len(prompt)
    assert found(SPARSE) == n_finer < 2304  # the blocks that attended all tokens before them


def test_what_was_sampled_before_the_settings_changed_is_not_kept(tiny, tmp_path):
    """The settings can change while the server runs; cells do not tell with which settings they were sampled."""
    where, prompt = StoreSettings(folder=tmp_path), conversation(5, 600)
    with serve(tiny, SPARSE, where, n_slots=1) as server:
        runtime = server.runtime
        longer = [*prompt, *ask(server, prompt, 300)["tokens"][:-1]]
        sampled = runtime.cells.stream().labels & SAMPLED != 0
        assert sampled.sum() >= 250
        runtime.configure(runtime.options.with_(error_every=16))
        assert not (runtime.cells.stream().labels & EARLIER).any()
        runtime.configure(runtime.options.with_(sample_budget=2000.0))
        assert np.array_equal(runtime.cells.stream().labels & EARLIER != 0, sampled)
        ask(server, longer, 4)
        server.prefixes.flush()
    assert from_disk(tiny, SPARSE | {"sample_budget": 2000.0}, where, longer) == len(prompt)
