"""Where a context is full, whole oldest exchanges leave it, and what stays is not read again."""

import numpy as np
import pytest
from support.clients import post, send
from support.prefix_server import EXACT, SPARSE, serve

from edgekv.common.enums import WhenFull
from edgekv.common.errors import ConfigError

SYSTEM = {"role": "system", "content": "You always answer at length."}
N_CTX = 512


def rolling(model, kv, **more):
    return serve(model, kv, n_ctx=N_CTX, when_full=WhenFull.ROLL, **more)


def chat(server, messages: list[dict], n: int, **more) -> dict:
    """Its text is one character, again and again, whatever the model prefers: it has as many tokens when it is sent back."""
    return post(server.url, "/v1/chat/completions", {"messages": messages, "max_tokens": n, "temperature": 0, "ignore_eos": True,
                                                     "logit_bias": [[301, 1e4]], "logprobs": True, "top_logprobs": 1, **more})


def grow(server, n_turns: int, n: int = 30, **more) -> list[dict]:
    """The answers of a conversation whose client sends all of it in each turn."""
    messages, answers = [SYSTEM], []
    for turn in range(n_turns):
        messages.append({"role": "user", "content": f"{turn} " + "more words " * 8})
        answers.append(chat(server, messages, n, **more))
        messages.append({"role": "assistant", "content": answers[-1]["choices"][0]["message"]["content"]})
    return answers


def refused(server, body: dict) -> dict:
    reply = send(server.url, "/v1/chat/completions", body)
    assert reply.status == 400
    return reply.body["error"]


def left(answer: dict) -> int:
    return answer["usage"]["edgekv"].get("left", {"n": 0})["n"]


def n_new(answer: dict) -> int:
    usage = answer["usage"]
    return usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("kv", [{"mode": "off"}, EXACT, SPARSE], ids=["off", "exact", "sparse"])
@pytest.mark.parametrize("model", ["llama", "deepseek2"], ids=["plain", "compressed"])
def test_nothing_is_read_again(synthetic, model, kv):
    with rolling(synthetic(model), kv) as server:
        answers = grow(server, 9)
    gone = [left(answer) for answer in answers]
    assert gone[0] == 0 and gone == sorted(gone) and gone[-1] > N_CTX / 2
    most = max(n_new(answer) for answer in answers[:2])
    assert all(n_new(answer) <= most + 4 for answer in answers), [n_new(answer) for answer in answers]
    assert all(answer["usage"]["prompt_tokens"] < N_CTX for answer in answers)
    for answer in answers:
        if ranges := answer["usage"]["edgekv"].get("left", {}).get("ranges"):
            assert len(ranges) == 1 and ranges[0][0] > 10 and ranges[0][1] == left(answer), "behind the system prompt, without gaps"


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
            messages += [{"role": "user", "content": f"{turn} " + "more words " * 4}, {"role": "assistant", "content": "yes " * 8}]
        long = chat(server, [*messages, {"role": "user", "content": "Go on."}], 450)
        alone = chat(server, [SYSTEM, {"role": "user", "content": "Go on."}], N_CTX)
    assert left(long) > 0 and long["usage"]["prompt_tokens"] + 450 > N_CTX and long["usage"]["completion_tokens"] == 450
    assert left(alone) == 0 and alone["usage"]["completion_tokens"] < N_CTX and alone["choices"][0]["finish_reason"] == "length"


def test_what_is_pinned_stays(tiny):
    with rolling(tiny, EXACT) as server:
        free, pinned = (grow(server, 7, edgekv_pinned=numbers)[-1]["usage"]["edgekv"]["left"]["ranges"] for numbers in ([], [1]))
        for wrong in ([99], [-1], ["1"], "1"):
            error = refused(server, {"messages": [SYSTEM], "edgekv_pinned": wrong})
            assert "the field 'edgekv_pinned' must list numbers of 'messages'" in error["message"]
    assert pinned[0][0] > free[0][0] + 50, "the first exchange is still there"


def test_it_stops_by_default(tiny):
    with serve(tiny, EXACT, n_ctx=N_CTX) as server:
        error = refused(server, {"messages": [{"role": "user", "content": "word " * N_CTX}]})
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
        messages = [SYSTEM, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "word " * N_CTX}]
        assert refused(server, {"messages": messages})["code"] == "context_length_exceeded"


def test_a_state_cannot_move(synthetic):
    """What stays of a conversation with a recurrent state is read again, and an answer ends where its context does."""
    with rolling(synthetic("lfm2"), EXACT) as server:
        answers = grow(server, 7)
        ends = chat(server, [SYSTEM, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}], N_CTX)
    assert left(answers[-1]) > 0 and max(map(n_new, answers)) > N_CTX / 4
    assert left(ends) == 0 and ends["choices"][0]["finish_reason"] == "length"


def test_a_template_with_a_system_prompt_of_its_own(wordy_model):
    """llama.cpp's own search takes such a prompt for a part of each user's message, and finds none."""
    with rolling(wordy_model, EXACT) as server:
        messages = [{"role": "user", "content": "word " * 150}, {"role": "assistant", "content": "yes"}] * 4
        (first, n), = chat(server, [*messages, {"role": "user", "content": "Go on."}], 4)["usage"]["edgekv"]["left"]["ranges"]
    assert 10 < first < 40 and n > 300, "behind the template's own system prompt"


def test_mode_evict_drops_by_itself(tiny):
    with pytest.raises(ConfigError, match="mode evict drops tokens by itself"):
        serve(tiny, {"mode": "evict", "evict_to": 256}, when_full=WhenFull.ROLL)
