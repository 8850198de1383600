"""What rolls out of a full context comes back before a message that is near it, as it was computed, and leaves first."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.clients import post
from support.prefix_server import EXACT, SPARSE, serve

from edgekv.common.enums import WhenFull
from edgekv.common.errors import ConfigError, EdgeKVError, ModelError
from edgekv.prefix_cache.exchanges import Exchanges, Record
from edgekv.prefix_cache.settings import RecallSettings
from edgekv.server import recalling

SYSTEM = {"role": "system", "content": "You always answer at length."}
N_CTX = 512
HEAD_DIM = 64
TOPICS = ("boats harbour sailing", "bread oven flour", "chess pawn queen", "garden roses spade", "piano music chord", "train station rails",
          "snow ski mountain", "doctor fever pill", "paint brush canvas", "horse saddle stable")


def recalling_server(model, kv=EXACT, recall=RecallSettings(), **more):
    return serve(model, kv, recall=recall, **{"n_ctx": N_CTX, "when_full": WhenFull.ROLL} | more)


def chat(server, messages: list[dict], n: int = 8, **more) -> dict:
    return post(server.url, "/v1/chat/completions", {"messages": messages, "max_tokens": n, "temperature": 0, "ignore_eos": True,
                                                     "logit_bias": [[301, 1e4]], "logprobs": True, "top_logprobs": 1, **more})


def said(topic: str) -> dict:
    return {"role": "user", "content": f"{topic} " * 4}


def go_on(server, messages: list[dict], topics) -> list[dict]:
    """The answers of a conversation that goes on with these topics, each in one exchange; its client sends all of it each time."""
    answers = []
    for topic in topics:
        messages.append(said(topic))
        answers.append(chat(server, messages))
        messages.append({"role": "assistant", "content": answers[-1]["choices"][0]["message"]["content"]})
    return answers


def talk(server) -> list[dict]:
    messages = [SYSTEM]
    go_on(server, messages, TOPICS)
    return messages


def runs(answer: dict, name: str) -> list[list[int]]:
    return answer["usage"]["edgekv"].get(name, {"ranges": []})["ranges"]


def tokens_of(server, messages: list[dict]) -> list[int]:
    prompt = post(server.url, "/apply-template", {"messages": messages})["prompt"]
    return post(server.url, "/tokenize", {"content": prompt, "parse_special": True, "add_special": True})["tokens"]


def n_new(answer: dict) -> int:
    usage = answer["usage"]
    return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("kv", [{"mode": "off"}, EXACT, SPARSE], ids=["off", "exact", "sparse"])
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
        before = go_on(server, messages, TOPICS)
        answers = go_on(server, messages, (TOPICS[1], TOPICS[4], TOPICS[2]))
    backs = [runs(answer, "back") for answer in answers]
    assert all(backs) and len({str(back) for back in backs}) > 1
    most = max(n_new(answer) for answer in before[1:])
    assert all(n_new(answer) <= most + 4 for answer in answers), f"more than the newest message is read: {[n_new(one) for one in before + answers]}"


def test_the_same_message_goes_on_with_the_same(tiny):
    """A question that is sent again, or an agent's next step, finds what came back in place."""
    with recalling_server(tiny) as server:
        messages = [*talk(server), said(TOPICS[1])]
        first, again = chat(server, messages), chat(server, messages)
        step = chat(server, [*messages, {"role": "assistant", "content": first["choices"][0]["message"]["content"]}])
    assert runs(first, "back") == runs(again, "back") == runs(step, "back") != []
    assert n_new(again) <= 4
    assert first["choices"][0]["message"]["content"] == again["choices"][0]["message"]["content"]


def test_rows_come_back_as_they_were_computed(tiny, monkeypatch):
    """V to the bit, and K turned to its new position."""
    taken: list[tuple[np.ndarray, Record, list[np.ndarray]]] = []
    put: list[tuple[int, np.ndarray]] = []
    save, put_in = Exchanges.insert, recalling.Recall.put

    def saving(self, of, readings, blocks, record, *more):
        taken.append((of.tokens, record, blocks))
        save(self, of, readings, blocks, record, *more)

    def putting(self, held, gone, which):
        put.append((len(held.tokens), gone.of(which)))
        return put_in(self, held, gone, which)

    monkeypatch.setattr(Exchanges, "insert", saving)
    monkeypatch.setattr(recalling.Recall, "put", putting)
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
    """What a new server never read is found in the folder; its rows come from disk."""
    where = RecallSettings(tmp_path)
    with recalling_server(tiny, recall=where) as server:
        messages = talk(server)
        server.recall.flush()
    with recalling_server(tiny, recall=where) as server:
        asked = chat(server, [*messages, said(TOPICS[1])])
    assert runs(asked, "back") and asked["usage"]["edgekv"]["cached_tokens"]["disk"] >= 16


def test_what_no_server_read_does_not_come_back(tiny):
    with recalling_server(tiny) as server:
        messages = talk(server)
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
        go_on(server, messages, topics)
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


def test_refusals(tiny, synthetic):
    with pytest.raises(ConfigError, match="add --when-full roll"):
        recalling_server(tiny, when_full=WhenFull.STOP)
    with pytest.raises(ConfigError, match="mode evict drops tokens one by one"):
        recalling_server(tiny, {"mode": "evict", "evict_to": 256}, when_full=WhenFull.STOP)
    with pytest.raises(ConfigError, match="--recall ram keeps exchanges in the memory of --cache-ram"):
        recalling_server(tiny, store=None)
    with pytest.raises(ConfigError, match="does not go with a draft model"):
        recalling_server(tiny, draft=Path("draft.gguf"))
    with pytest.raises(ConfigError, match="does not go with a projector"):
        recalling_server(tiny, extra=("--mmproj", "projector.gguf"))
    with pytest.raises(ModelError, match="keeps compressed rows"):
        recalling_server(synthetic("deepseek2"))
    for kind in ("lfm2", "gemma2"):
        with pytest.raises(EdgeKVError, match="tokens cannot move back into its context"):
            recalling_server(synthetic(kind)).start()


def test_without_recall_nothing_is_told(tiny):
    with serve(tiny, EXACT, n_ctx=N_CTX, when_full=WhenFull.ROLL) as server:
        asked = chat(server, [*talk(server), said(TOPICS[1])])
    assert runs(asked, "left") and "back" not in asked["usage"]["edgekv"]
