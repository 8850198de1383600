"""Where a context is full, whole oldest exchanges leave it, and what stays is not read again. With recall what left comes back before a message that is
near it, as it was computed, and leaves first."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.calls import watch
from support.clients import post, send
from support.prefix_server import EXACT, SPARSE, serve
from support.vision import assistant

from edgekv.common.enums import WhenFull
from edgekv.common.errors import ConfigError, EdgeKVError, ModelError
from edgekv.prefix_cache.exchanges import Exchanges, Record
from edgekv.prefix_cache.settings import RecallSettings
from edgekv.server import recalling

MODES = pytest.mark.parametrize("kv", [{"mode": "off"}, EXACT, SPARSE], ids=["off", "exact", "sparse"])
SYSTEM = {"role": "system", "content": "You always answer at length."}
N_CTX = 512
HEAD_DIM = 64
TOPICS = ("boats harbour sailing", "bread oven flour", "chess pawn queen", "garden roses spade", "piano music chord", "train station rails",
          "snow ski mountain", "doctor fever pill", "paint brush canvas", "horse saddle stable")


def rolling(model, kv=EXACT, **more):
    return serve(model, kv, **{"n_ctx": N_CTX, "when_full": WhenFull.ROLL} | more)


def recalling_server(model, kv=EXACT, recall=RecallSettings(), **more):
    return rolling(model, kv, recall=recall, **more)


def chat(server, messages: list[dict], n: int = 8, **more) -> dict:
    """Its text is one character, again and again, whatever the model prefers: it has as many tokens when it is sent back."""
    return post(server.url, "/v1/chat/completions", {"messages": messages, "max_tokens": n, "temperature": 0, "ignore_eos": True,
                                                     "logit_bias": [[301, 1e4]], "logprobs": True, "top_logprobs": 1, **more})


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def text_of(answer: dict) -> str:
    return answer["choices"][0]["message"]["content"]


def go_on(server, messages: list[dict], questions: Iterable[dict], n: int = 8, **more) -> list[dict]:
    """The answers of a conversation that goes on with these, each in one exchange; its client sends all of it each time."""
    answers = []
    for question in questions:
        messages.append(question)
        answers.append(chat(server, messages, n, **more))
        messages.append(assistant(text_of(answers[-1])))
    return answers


def grow(server, n_turns: int, **more) -> list[dict]:
    return go_on(server, [SYSTEM], [user(f"{turn} " + "more words " * 8) for turn in range(n_turns)], 30, **more)


def said(topic: str) -> dict:
    return user(f"{topic} " * 4)


def talk(server) -> list[dict]:
    messages = [SYSTEM]
    go_on(server, messages, map(said, TOPICS))
    return messages


def refused(server, body: dict) -> dict:
    reply = send(server.url, "/v1/chat/completions", body)
    assert reply.status == 400
    return reply.body["error"]


def runs(answer: dict, name: str) -> list[list[int]]:
    """Tokens that left, or came back: the first, and how many."""
    return answer["usage"]["edgekv"].get(name, {"ranges": []})["ranges"]


def left(answer: dict) -> int:
    return sum(n for _, n in runs(answer, "left"))


def tokens_of(server, messages: list[dict]) -> list[int]:
    prompt = post(server.url, "/apply-template", {"messages": messages})["prompt"]
    return post(server.url, "/tokenize", {"content": prompt, "parse_special": True, "add_special": True})["tokens"]


def n_new(answer: dict) -> int:
    usage = answer["usage"]
    return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]


@MODES
@pytest.mark.parametrize(("model", "n_slots"), [("llama", 1), ("deepseek2", 1), ("llama", 2)], ids=["plain", "compressed", "two slots"])
def test_nothing_is_read_again(synthetic, model, n_slots, kv):
    """With several slots the one that holds the conversation is found, although what both have from the first token on is the system prompt alone."""
    with rolling(synthetic(model), kv, n_slots=n_slots) as server:
        answers = grow(server, 9)
    gone = [left(answer) for answer in answers]
    assert gone[0] == 0 and gone == sorted(gone) and gone[-1] > N_CTX / 2
    most = max(n_new(answer) for answer in answers[:2])
    assert all(n_new(answer) <= most + 4 for answer in answers), [n_new(answer) for answer in answers]
    assert all(answer["usage"]["prompt_tokens"] < N_CTX for answer in answers)
    for answer in answers:
        assert answer["usage"]["edgekv"].get("left", {"n": 0})["n"] == left(answer) and "back" not in answer["usage"]["edgekv"]
        assert not (ranges := runs(answer, "left")) or len(ranges) == 1 and ranges[0][0] > 10, "behind the system prompt, without gaps"


@pytest.mark.parametrize("model", ["llama", "deepseek2"], ids=["plain", "compressed"])
def test_modes_agree(synthetic, model):
    """The best tokens' log-probabilities are as near to stock's behind a roll as before one. Rows that moved keep what they knew of those that left,
    so a conversation that is read again differs from both by far more."""
    found = []
    for kv in ({"mode": "off"}, EXACT):
        with rolling(synthetic(model), kv) as server:
            answers = grow(server, 7)
            found.append([[one["top_logprobs"][0]["logprob"] for one in answer["choices"][0]["logprobs"]["content"]] for answer in answers])
    n_whole = [left(answer) for answer in answers].count(0)
    apart = np.abs(np.subtract(*found)).max(axis=1)
    assert 0 < n_whole < 6 and apart.max() < 3 * apart[:n_whole].max() < 0.3


def test_an_answer_goes_on(tiny):
    """It outgrows its context while exchanges are left that may go; then it ends."""
    with rolling(tiny, EXACT) as server:
        messages = [SYSTEM]
        for turn in range(3):
            messages += [user(f"{turn} " + "more words " * 4), assistant("yes " * 8)]
        long = chat(server, [*messages, user("Go on.")], 450)
        alone = chat(server, [SYSTEM, user("Go on.")], N_CTX)
    assert left(long) > 0 and long["usage"]["prompt_tokens"] + 450 > N_CTX and long["usage"]["completion_tokens"] == 450
    assert left(alone) == 0 and alone["usage"]["completion_tokens"] < N_CTX and alone["choices"][0]["finish_reason"] == "length"


def test_what_is_pinned_stays(tiny):
    with rolling(tiny, EXACT) as server:
        free, pinned = (runs(grow(server, 7, edgekv_pinned=numbers)[-1], "left") for numbers in ([], [1]))
        for wrong in ([99], [-1], ["1"], "1"):
            error = refused(server, {"messages": [SYSTEM], "edgekv_pinned": wrong})
            assert "the field 'edgekv_pinned' must list numbers of 'messages'" in error["message"]
    assert pinned[0][0] > free[0][0] + 50, "the first exchange is still there"


def test_it_stops_by_default(tiny):
    with serve(tiny, EXACT, n_ctx=N_CTX) as server:
        error = refused(server, {"messages": [user("word " * N_CTX)]})
        assert error["code"] == "context_length_exceeded"
        (model,) = send(server.url, "/v1/models").body["data"]
        assert model["max_model_len"] == model["context_length"] == N_CTX


def test_a_text_that_is_no_chat_ends_at_its_context(tiny):
    """It has no exchange that could leave."""
    with rolling(tiny, EXACT) as server:
        answer = post(server.url, "/completion", {"prompt": "word " * 50, "n_predict": N_CTX, "ignore_eos": True})
        assert answer["truncated"] and answer["tokens_evaluated"] + answer["tokens_predicted"] >= N_CTX - 1
        assert grow(server, 1), "the server goes on"


def test_one_message_that_is_too_long(tiny):
    with rolling(tiny, EXACT) as server:
        messages = [SYSTEM, user("a"), assistant("b"), user("word " * N_CTX)]
        assert refused(server, {"messages": messages})["code"] == "context_length_exceeded"


def test_a_state_cannot_move(synthetic):
    """What stays of a conversation with a recurrent state is read again, and an answer ends where its context does."""
    with rolling(synthetic("lfm2"), EXACT) as server:
        answers = grow(server, 7)
        ends = chat(server, [SYSTEM, user("a"), assistant("b"), user("c")], N_CTX)
    assert left(answers[-1]) > 0 and max(map(n_new, answers)) > N_CTX / 4
    assert left(ends) == 0 and ends["choices"][0]["finish_reason"] == "length"


def test_a_template_with_a_system_prompt_of_its_own(wordy_model):
    """llama.cpp's own search takes such a prompt for a part of each user's message, and finds none."""
    with rolling(wordy_model, EXACT) as server:
        ((first, n),) = runs(chat(server, [*[user("word " * 150), assistant("yes")] * 4, user("Go on.")], 4), "left")
    assert 10 < first < 40 and n > 300, "behind the template's own system prompt"


# ---- what comes back -------------------------------------------------------------------------------------------------------------


@MODES
def test_what_is_asked_for_comes_back(tiny, kv):
    with recalling_server(tiny, kv) as server:
        messages = talk(server)
        asked = chat(server, [*messages, said(TOPICS[1])])
        first, second = (len(tokens_of(server, messages[:n])) for n in (2, 4))
    left, back = runs(asked, "left"), runs(asked, "back")
    assert left and back, "something left, and something came back"
    assert all(any(first <= a and a + n <= first + m for first, m in left) for a, n in back), "only what left comes back"
    assert any(a <= (first + second) / 2 < a + n for a, n in back), f"{back} has not the exchange about bread, from {first} to {second}"
    assert asked["usage"]["prompt_tokens"] < N_CTX
    assert n_new(asked) < second - first + 16, "the rows of what came back are not read again"


def test_it_leaves_first_and_nothing_is_read_again(tiny):
    with recalling_server(tiny) as server:
        messages = [SYSTEM]
        before = go_on(server, messages, map(said, TOPICS))
        answers = go_on(server, messages, [said(TOPICS[i]) for i in (1, 4, 2)])
    backs = [runs(answer, "back") for answer in answers]
    assert all(backs) and len({str(back) for back in backs}) > 1
    most = max(n_new(answer) for answer in before[1:])
    assert all(n_new(answer) <= most + 4 for answer in answers), f"more than the newest message is read: {[n_new(one) for one in before + answers]}"


def test_the_same_message_goes_on_with_the_same(tiny):
    """A question that is sent again, or an agent's next step, finds what came back in place."""
    with recalling_server(tiny) as server:
        messages = [*talk(server), said(TOPICS[1])]
        first, again = chat(server, messages), chat(server, messages)
        step = chat(server, [*messages, assistant(text_of(first))])
    assert runs(first, "back") == runs(again, "back") == runs(step, "back") != []
    assert n_new(again) <= 4
    assert text_of(first) == text_of(again)


def test_rows_come_back_as_they_were_computed(tiny, monkeypatch):
    """V to the bit, and K turned to its new position."""
    taken: list[tuple[np.ndarray, Record, list[np.ndarray]]] = []
    put: list[tuple[int, np.ndarray]] = []
    watch(monkeypatch, Exchanges, "insert", lambda _, of, _readings, blocks, record: taken.append((of.tokens, record, blocks)))
    watch(monkeypatch, recalling.Recall, "put", lambda _, held, gone, which: put.append((len(held.tokens), gone.of(which))))
    with recalling_server(tiny) as server:
        chat(server, [*talk(server), said(TOPICS[1])])
        at, tokens = put[-1]

        def read() -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]:
            runtime = server.runtime
            cells = runtime.tokens.cells_of(0, at + len(tokens))[at:]
            k_bytes, v_bytes = runtime.tokens.row_bytes()
            return runtime.cells.stream().positions[cells], runtime.tokens.read(0, cells, len(cells) * sum(k_bytes + v_bytes)), list(zip(k_bytes, v_bytes))

        positions, rows, sizes = server.between_batches(read)
    kept, record = next((blocks[0], record) for of, record, blocks in taken if np.array_equal(of, tokens))
    assert record.position != at and len(kept) == len(rows)
    np.testing.assert_array_equal(positions, np.arange(at, at + len(tokens)))
    start = 0
    for k_bytes, v_bytes in sizes:
        k, v = slice(start, start + k_bytes * len(tokens)), slice(start + k_bytes * len(tokens), start + (k_bytes + v_bytes) * len(tokens))
        start = v.stop
        np.testing.assert_array_equal(kept[v], rows[v])
        before, after = (one[k].view(np.float16).astype(np.float32).reshape(len(tokens), -1, HEAD_DIM) for one in (kept, rows))
        assert np.abs(turn(before, at - record.position) - after).max() < 4e-3 * np.abs(before).max()
        assert np.abs(before - after).max() > 0.1 * np.abs(before).max(), "K did turn"


def turn(keys: np.ndarray, by: int, base: float = 10000.0) -> np.ndarray:
    """Keys [n, head, channel] `by` positions later: llama's rotation of neighbouring channels."""
    n_rot = keys.shape[-1]
    angle = by * base ** (-np.arange(0, n_rot, 2) / n_rot)
    cos, sin, x, y = np.cos(angle), np.sin(angle), keys[..., 0::2], keys[..., 1::2]
    return np.stack([x * cos - y * sin, x * sin + y * cos], axis=-1).reshape(keys.shape)


def test_a_folder_outlives_the_server(tiny, tmp_path):
    """What a new server never read is found in the folder; its rows come from disk. Without the folder it does not come back."""
    with recalling_server(tiny, recall=RecallSettings(tmp_path)) as server:
        messages = talk(server)
        server.recall.flush()
    with recalling_server(tiny, recall=RecallSettings(tmp_path)) as server:
        asked = chat(server, [*messages, said(TOPICS[1])])
    assert runs(asked, "back") and asked["usage"]["edgekv"]["cached_tokens"]["disk"] >= 16
    with recalling_server(tiny) as server:
        asked = chat(server, [*messages, said(TOPICS[1])])
    assert runs(asked, "left") and not runs(asked, "back")


def test_another_namespace_recalls_nothing(tiny):
    with recalling_server(tiny) as server:
        messages = [*talk(server), said(TOPICS[1])]
        other = chat(server, messages, cache_salt="another")
        mine = chat(server, messages)
    assert runs(other, "left") and not runs(other, "back") and runs(mine, "back")


def test_an_answer_outgrows_its_context(tiny):
    """What came back makes room first."""
    with recalling_server(tiny) as server:
        messages = [*talk(server), said(TOPICS[1])]
        assert runs(chat(server, messages), "back")
        long = chat(server, messages, 300)
    assert long["usage"]["completion_tokens"] == 300 and long["choices"][0]["finish_reason"] == "length"


@pytest.mark.usefixtures("single_precision")
def test_conversations_beside_each_other(tiny):
    """Each gets its own exchanges back, as it does alone."""
    others = tuple(topic[::-1] for topic in TOPICS)

    def last(server, topics) -> dict:
        messages = [{"role": "system", "content": topics[0]}]
        go_on(server, messages, map(said, topics))
        return chat(server, [*messages, said(topics[1])])

    with recalling_server(tiny, n_slots=2) as server, ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda topics: last(server, topics), (TOPICS, others)))
    for topics, answer in zip((TOPICS, others), together):
        with recalling_server(tiny) as server:
            alone = last(server, topics)
        assert runs(answer, "back") == runs(alone, "back") != []


def test_rows_that_are_gone_are_read_again(tiny, monkeypatch):
    monkeypatch.setattr(recalling.Recall, "put", lambda *_: (-1, recalling.CachedTokens()))
    with recalling_server(tiny) as server:
        messages = [*talk(server), said(TOPICS[1])]
        asked = chat(server, messages)
    assert sum(n for _, n in runs(asked, "back")) <= n_new(asked) < N_CTX / 2


EVICT = {"mode": "evict", "evict_to": 256}


@pytest.mark.parametrize(("more", "said"), [
    ({"when_full": WhenFull.STOP}, "add --when-full roll"), ({"kv": EVICT, "recall": None}, "mode evict drops tokens by itself"),
    ({"kv": EVICT, "when_full": WhenFull.STOP}, "mode evict drops tokens one by one"),
    ({"store": None}, "--recall ram keeps exchanges in the memory of --cache-ram"), ({"draft": Path("draft.gguf")}, "does not go with a draft model"),
    ({"extra": ("--mmproj", "projector.gguf")}, "does not go with a projector")], ids=str)
def test_what_does_not_go_together_is_refused(tiny, more: dict, said: str):
    with pytest.raises(ConfigError, match=said):
        recalling_server(tiny, **more)


def test_models_whose_tokens_cannot_come_back(synthetic):
    with pytest.raises(ModelError, match="keeps compressed rows"):
        recalling_server(synthetic("deepseek2"))
    for kind in ("lfm2", "gemma2"):
        with pytest.raises(EdgeKVError, match="tokens cannot move back into its context"):
            recalling_server(synthetic(kind)).start()
