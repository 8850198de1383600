"""The server in mode evict: a conversation longer than what is kept, and several slots, each of which answers as if it were alone."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.clients import CHAT, post, send, shown_at
from support.homes import resident_bytes
from support.local_server import exposed
from support.prefix_server import ask, conversation, n_read, serve

from edgekv._native import core
from edgekv.cli.chat.kv_status import KvWatch, memory_rows, mode_summary
from edgekv.cli.chat.render import _kv_parts
from edgekv.common.errors import ConfigError
from edgekv.config import KvOptions
from edgekv.models.synth_file import SyntheticShape
from edgekv.planning.context import ENDLESS
from edgekv.prefix_cache.settings import StoreSettings
from edgekv.runtime import attachments
from edgekv.runtime.runtime import Runtime
from edgekv.server.server import Server
from edgekv.server.server_options import ServerOptions

KEEP = 256
EVICT = {"mode": "evict", "evict_to": KEEP, "plan_every": 1, "recent_tokens": 32}
"""The policy looks after each batch: how often it looks at one slot does not depend on the others then."""


def evicting(model, kv: dict | None = None, **more) -> Server:
    return serve(model, EVICT | (kv or {}), **{"store": None, "n_ctx": None} | more)


@pytest.fixture
def long_ones(synthetic):
    """A model in F32 of several layers, which keep different tokens, trained for more tokens than are kept."""
    return synthetic("llama", n_layer=4, n_head=6, dtype="f32", n_ctx_train=1024)


def by_slot(server: Server) -> list[dict]:
    return [slot["edgekv"] for slot in send(server.url, "/slots").body]


@pytest.mark.parametrize("more", [{}, {"positions": 400}, {"policy": "streaming(sink_tokens=4)"}, {"sample_budget": 1e9, "exact_tokens": 0}])
def test_conversations_at_once_each_keep_their_own_tokens(long_ones, more):
    """Their answers run far over what is kept, and so do their next turns. A row of V in the first layer tells which token it is of. That a sequence
    beside others is computed as it is alone: tests/runtime/test_evicting_sequences.py."""
    n_vocab = SyntheticShape().n_vocab
    with serve(long_ones) as server:
        ask(server, list(range(n_vocab)), 1)
        row_of = server.runtime.cells.values(0)[0, :n_vocab].astype(np.float32).reshape(n_vocab, -1)

    def held(run: Runtime, stream: int) -> dict[int, int]:
        """Tokens whose rows all heads of the first layer keep, by position."""
        positions = run.cells.stream(stream).positions
        gone = np.split(run.cells.dropped()[0].any(axis=0), run.cells.n_stream)[stream].repeat(run.page_tokens)[: len(positions)]
        kept = np.flatnonzero((positions >= 0) & ~gone)
        rows = run.cells.values(0)[stream, kept].astype(np.float32).reshape(len(kept), -1)
        tokens = [int(np.abs(row_of - row).sum(axis=1).argmin()) for row in rows]
        return dict(sorted(zip(positions[kept].tolist(), tokens, strict=True)))

    said = [conversation(seed, 120 + 23 * seed) for seed in range(3)]
    with evicting(long_ones, more, n_slots=3) as server, ThreadPoolExecutor(3) as pool:
        run = server.runtime
        assert run.cells.n_stream == 3
        for turn in range(2):
            answers = list(pool.map(lambda i: ask(server, said[i], 400, id_slot=i), range(3)))
            assert turn == 0 or [n_read(answer) for answer in answers] == [2] * 3, "the token that ended the answer, and the next"
            said = [[*tokens, *answer["tokens"], 300] for tokens, answer in zip(said, answers, strict=True)]
            assert [slot["n_positions"] for slot in by_slot(server)] == [len(tokens) - 2 for tokens in said]
            for stream, tokens in enumerate(said):
                found = held(run, stream)
                assert EVICT["recent_tokens"] <= len(found) < len(tokens) - 2, "the newest stay in all heads"
                if "positions" in more:  # gaps are closed
                    left = iter(tokens)
                    assert all(token in left for token in found.values()), "in their order"
                else:
                    assert found == {position: tokens[position] for position in found}
        assert run.stats.n_freed > 3 * 400


def test_each_slot_has_its_bound_and_gives_its_memory_back(long_ones, tmp_path):
    with evicting(long_ones, n_slots=3, store=StoreSettings(), extra=("--slot-save-path", str(tmp_path))) as server, ThreadPoolExecutor(3) as pool:
        run = server.runtime
        assert server.context.n_ctx == run.n_context == ENDLESS and run.cells.closes_gaps, "longer than the model was trained for"
        parts = {part.name: part.bytes for part in server.parts()}
        home = parts["KV home"]
        assert "prefix store" not in parts, "dropped tokens cannot be kept"
        assert home == run.memory().home_bytes == server.context.kv_bytes and run.memory().n_cells == 3 * KEEP

        def resident() -> int:
            return sum(resident_bytes(rows) for il in range(4) for rows in (run.cells.keys(il), run.cells.values(il)))

        for turn in range(6):
            list(pool.map(lambda i: ask(server, conversation(i, 300 * (turn + 1)), 20, id_slot=i), range(3)))
            slots = by_slot(server)
            assert resident() <= home and run.memory().n_cells_used <= 3 * KEEP
            assert all(slot["bytes_home"] <= home / 3 and slot["n_ctx"] == ENDLESS for slot in slots), slots
            assert [slot["stream"] for slot in slots] == [0, 1, 2]
        assert [slot["n_positions"] for slot in slots] == [1819] * 3 and max(slot["n_tokens"] for slot in slots) > KEEP
        assert sum(slot["bytes_home"] for slot in slots) == pytest.approx(run.memory().used_bytes, rel=0.01)
        found = exposed(server)
        assert [found["edgekv_slot_tokens", (("slot", f"{i}"),)] for i in range(3)] == [slot["n_tokens"] for slot in slots]
        state = shown_at(server, "/edgekv/state")
        assert state["kept"] == [run.memory().n_cells_used, 3 * 1819] and state["pages"]["dropped_tokens"] == run.stats.n_freed

        assert send(server.url, "/slots/1?action=erase", {}).status == 200
        ask(server, conversation(0, 1800), 4, id_slot=0)
        now = by_slot(server)
        assert (now[1]["n_tokens"], now[1]["bytes_home"], now[1]["pages_home"]) == (0, 0, 0) and now[2] == slots[2]
        assert resident() <= 2 * home / 3
        ask(server, conversation(9, 20), 4, id_slot=2)  # another conversation takes the place of a long one
        assert by_slot(server)[2]["n_tokens"] < 30 and resident() <= home / 3 + 100_000


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize("n_prompt", [150, 900])
@pytest.mark.parametrize("policy", ["streaming(sink_tokens=4)", "ema+anchor+recent", "h2o", "snapkv+recent", "hierarchical+anchor+recent"])
def test_several_answers_to_one_prompt(long_ones, n_prompt, policy):
    """The other slots get copies of what the first one kept, and of what it knows of its pages. So greedy answers are the same, also to a prompt that is
    far longer than what is kept. They are those of one answer alone if what goes does not depend on attention: which free cells llama.cpp takes, and so
    which tokens share a page, depends on how many tokens of others are in the batch."""
    body = {"prompt": conversation(3, n_prompt), "max_tokens": 60, "temperature": 0, "n": 3, "ignore_eos": True}
    with evicting(long_ones, {"policy": policy}, n_slots=3) as server:
        reply = send(server.url, "/v1/completions", body)
        assert reply.status == 200 and len(reply.body["choices"]) == 3 and server.runtime.memory().n_cells_used <= 3 * KEEP
        assert sorted(slot["n_positions"] for slot in by_slot(server)) == [0, 0, n_prompt + 59], "copies go when they are answered"
    texts = {choice["text"] for choice in reply.body["choices"]}
    assert len(texts) == 1
    if "streaming" in policy:
        with evicting(long_ones, {"policy": policy}) as server:
            alone = send(server.url, "/v1/completions", body | {"n": 1})
        assert texts == {alone.body["choices"][0]["text"]}


@pytest.mark.usefixtures("single_precision")
@pytest.mark.parametrize("kind", ["gemma2", "gpt-oss", "lfm2"])
def test_windows_and_states_are_copied_too(synthetic, kind):
    """Three answers to a prompt, beside tokens that sliding or recurrent layers keep; then each slot has another conversation."""
    model, kv = synthetic(kind, n_ctx_train=1024), {"policy": "streaming(sink_tokens=4)"}
    body = {"prompt": conversation(3, 700), "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    with evicting(model, kv) as server:
        alone = send(server.url, "/v1/completions", body).body["choices"][0]["text"]
    with evicting(model, kv, n_slots=3) as server, ThreadPoolExecutor(3) as pool:
        choices = send(server.url, "/v1/completions", body | {"n": 3}).body["choices"]
        assert [choice["text"] for choice in choices] == [alone] * 3
        answers = pool.map(lambda i: ask(server, conversation(i, 500 + 100 * i), 50, id_slot=i)["tokens"], range(3))
        assert [len(tokens) for tokens in answers] == [50] * 3 and server.runtime.memory().n_cells_used <= 3 * KEEP


# ---- one slot --------------------------------------------------------------------------------------------------------------------


def say(server: Server, messages: list[dict], n: int) -> dict:
    return post(server.url, CHAT, {"messages": messages, "max_tokens": n, "temperature": 0})


def test_a_conversation_longer_than_what_is_kept(synthetic):
    """The conversation grows turn by turn, goes back to a position whose neighbour is gone, and begins anew."""
    options = ServerOptions(synthetic("llama"), kv=KvOptions(mode="evict", evict_to=256), n_ctx=2048)
    with Server(options) as server:
        (run,) = attachments.live()
        messages, seen = [], []
        for turn in range(9):
            messages += [{"role": "user", "content": f"{turn}" * 80}]
            messages += [say(server, messages, 30)["choices"][0]["message"]]
            seen.append(run.n_positions)
            assert run.memory().n_cells_used <= 256
            if turn == 7:
                messages = messages[:6]
        assert max(seen) > 800 and run.stats.n_freed > 500 and core.limits(run._native_handle()).n_ctx_seq == 2048
        status = KvWatch(server).status(run.n_positions)
        assert status.kept == (run.memory().n_cells_used, run.n_positions)
        assert _kv_parts(status)[0][0][1] == f"KV evict: {status.kept[0]:,} of {status.kept[1]:,} tokens kept"
        assert mode_summary(server) == "evict: 256 tokens kept"
        rows = dict(memory_rows(server))
        assert rows["kept"].startswith(f"{status.kept[0]:,} of") and rows["dropped"].startswith(f"{run.stats.n_freed:,} tokens")
        assert say(server, [{"role": "user", "content": "x"}], 5)["usage"]["completion_tokens"] > 0


def test_what_the_server_cannot_keep_is_refused(synthetic):
    path, kv = synthetic("llama"), KvOptions(mode="evict", evict_to=512)
    for option in ("--kv-unified", "-kvu"):
        with pytest.raises(ConfigError, match=f"{option} does not go with mode evict: each slot keeps tokens of its own"):
            evicting(path, n_slots=2, extra=(option,))
    for option in ("--context-shift", "--cache_reuse", "-ub"):
        with pytest.raises(ConfigError, match="does not go with mode evict"):
            Server(ServerOptions(path, kv=kv, extra=(option, "256")))
    with pytest.raises(ConfigError, match="always kept \\(5,"):
        Server(ServerOptions(path, kv=kv.with_(recent_tokens=5000), n_ctx=2048)).start()
    assert not attachments.live()
