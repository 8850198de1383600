"""An answer holds all that was asked for: log-probabilities in each API's form, the prompt, as many tokens as allowed, and counts that come once."""

from typing import Any

import anthropic
import openai
import pytest
from support.clients import CHAT, Stream, drained, post
from support.dialects import COMPLETIONS
from support.serve_process import Served
from support.stub_server import stub_server

USER = {"role": "user", "content": "?"}
PIECES = [b"All", b" is", b" w\xc3", b"\xa4ll", b" told."]
TEXT = b"".join(PIECES).decode()

served = stub_server(PIECES, "--parallel", "2", "--alias", "org/stub")


@pytest.fixture(scope="module")
def told(served: Served) -> list[int]:
    """The tokens of the answer."""
    tokens = post(served.url, "/completion", {"prompt": "?", "return_tokens": True})["tokens"]
    assert len(tokens) == len(PIECES) + 1, "with the end"
    return tokens[:-1]


def is_certain(values: list[float]) -> bool:
    """The stub gives its next token a logit of 22 and all others 0."""
    return all(value > -1e-3 for value in values)


def test_a_completion_has_lists_of_tokens(gpt: openai.OpenAI):
    choice = gpt.completions.create(model="x", prompt="?", max_tokens=2, logprobs=2, temperature=0).choices[0]
    found = choice.logprobs
    assert choice.text == "All is" and found.tokens == ["All", " is"] and found.text_offset == [0, 3] and is_certain(found.token_logprobs)
    assert found.top_logprobs[0]["All"] == found.token_logprobs[0] and len(found.top_logprobs[1]) == 2
    bare = gpt.completions.create(model="x", prompt="?", max_tokens=2, logprobs=0, temperature=0).choices[0].logprobs
    assert bare.tokens == ["All", " is"] and len(bare.token_logprobs) == 2 and bare.top_logprobs is None


def test_a_prompt_is_repeated_and_scored(gpt: openai.OpenAI, told: list[int]):
    """As evaluations ask: the log-likelihood of a text behind another."""
    asked: dict[str, Any] = {"model": "x", "prompt": [ord("?"), *told[:4]], "max_tokens": 1, "logprobs": 1, "temperature": 0, "echo": True}
    choice = gpt.completions.create(**asked).choices[0]
    found = choice.logprobs
    assert choice.text == f"?{TEXT}" and found.tokens[:3] == ["?", "All", " is"] and found.text_offset == [0, 1, 4, 7, 10, 12]
    assert found.token_logprobs[0] is None and found.top_logprobs[0] is None and is_certain(found.token_logprobs[1:])
    wrong = gpt.completions.create(**{**asked, "prompt": [ord("?"), told[1], told[3]]}).choices[0].logprobs
    assert wrong.token_logprobs[1] < -20 and wrong.token_logprobs[2] < -20 and max(wrong.top_logprobs[1], key=wrong.top_logprobs[1].get) == "All"

    chunks = [chunk.choices[0] for chunk in gpt.completions.create(**asked, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == choice.text
    for name in ("tokens", "token_logprobs"):
        assert [one for chunk in chunks if chunk.logprobs for one in getattr(chunk.logprobs, name)] == getattr(found, name)
    begins = [len("".join(chunk.text for chunk in chunks[:place])) for place in range(len(chunks))]
    assert [chunk.logprobs.text_offset for chunk in chunks if chunk.logprobs] == [[begin] for begin in begins[:-1]]


def test_long_prompts_are_scored_side_by_side(gpt: openai.OpenAI, told: list[int]):
    """More tokens than a step of answers has outputs, in each slot."""
    prompts = [[ord("a")] * 300 + told[:n] for n in (3, 4)]
    for choice, prompt in zip(gpt.completions.create(model="x", prompt=prompts, max_tokens=1, logprobs=1, echo=True).choices, prompts, strict=True):
        values = choice.logprobs.token_logprobs
        assert len(values) == len(prompt) + 1 and max(values[1:300]) < -20 and is_certain(values[301:])


@pytest.mark.parametrize("n_tokens", [0, 2])
def test_a_prompt_is_repeated(gpt: openai.OpenAI, n_tokens: int):
    asked: dict[str, Any] = {"model": "x", "prompt": ["äh?", "oh?"], "max_tokens": n_tokens, "temperature": 0, "echo": True, "n": 2}
    texts = [prompt + ("All is" if n_tokens else "") for prompt in ("äh?", "äh?", "oh?", "oh?")]
    assert [choice.text for choice in gpt.completions.create(**asked).choices] == texts
    streamed = {}
    for chunk in gpt.completions.create(**asked, stream=True):
        streamed[chunk.choices[0].index] = streamed.get(chunk.choices[0].index, "") + chunk.choices[0].text
    assert [streamed[index] for index in range(4)] == texts


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_has_the_probabilities_it_asks_for(gpt: openai.OpenAI, stream: bool):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    for n_tops in (None, 0, 2):
        more = {} if n_tops is None else {"top_logprobs": n_tops}
        reply = gpt.chat.completions.create(model="x", messages=[USER], temperature=0, max_tokens=2, logprobs=True, tools=tools, stream=stream, **more)
        found = [token for chunk in (reply if stream else [reply]) for choice in chunk.choices if choice.logprobs for token in choice.logprobs.content]
        assert [token.token for token in found] == ["All", " is"] and is_certain([token.logprob for token in found])
        assert [len(token.top_logprobs) for token in found] == [n_tops or 0] * 2
        assert [bytes(token.bytes) for token in found] == PIECES[:2]


@pytest.mark.parametrize(("path", "body"), [
    (CHAT, {"messages": [USER], "n": 2, "max_tokens": 3}), (COMPLETIONS, {"prompt": ["?", "oh?"], "max_tokens": 3}),
    (COMPLETIONS, {"prompt": ["?", "oh?"], "n": 3, "max_tokens": 3}), (CHAT, {"messages": [USER], "max_completion_tokens": 3}),
], ids=str)
def test_usage_comes_once_and_of_all_answers(served: Served, path: str, body: dict):
    whole = post(served.url, path, body)
    n_choices = len(whole["choices"])
    assert whole["usage"]["completion_tokens"] == 3 * n_choices and {choice["finish_reason"] for choice in whole["choices"]} == {"length"}
    if path == COMPLETIONS:
        alone = [post(served.url, path, {**body, "prompt": prompt, "n": 1})["usage"]["prompt_tokens"] for prompt in body["prompt"]]
        assert whole["usage"]["prompt_tokens"] == sum(alone)
    events = drained(Stream(served.url, {**body, "stream_options": {"include_usage": True}}, path))
    *others, last = [event for event in events if "usage" in event]
    assert not others and last["choices"] == [] and last is events[-1] and {event["id"] for event in events} == {last["id"]}
    assert {event["choices"][0]["index"] for event in events[:-1]} == {choice["index"] for choice in whole["choices"]} == {*range(n_choices)}
    if path == CHAT:
        assert whole["choices"][0]["message"]["role"] == events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [end for event in events[:-1] if (end := event["choices"][0]["finish_reason"])] == ["length"] * n_choices
    for name in ("completion_tokens", "prompt_tokens", "total_tokens"):
        assert last["usage"][name] == whole["usage"][name], name
    assert not any("usage" in event for event in drained(Stream(served.url, body, path))), "nobody asked"


def test_a_limit_of_no_tokens(served: Served, gpt: openai.OpenAI, claude: anthropic.Anthropic):
    chat = gpt.chat.completions.create(model="x", messages=[USER], max_tokens=0)
    assert (chat.choices[0].message.content, chat.choices[0].finish_reason, chat.usage.completion_tokens) == ("", "length", 0)
    completion = gpt.completions.create(model="x", prompt="?", max_tokens=0)
    assert (completion.choices[0].text, completion.choices[0].finish_reason, completion.usage.completion_tokens) == ("", "length", 0)
    response = gpt.responses.create(model="x", input="?", max_output_tokens=0)
    assert (response.output_text, response.status, response.usage.output_tokens) == ("", "incomplete", 0)
    message = claude.messages.create(model="x", messages=[USER], max_tokens=0)
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)
    with gpt.responses.stream(model="x", input="?", max_output_tokens=0) as stream:
        assert [event.type for event in stream] == ["response.created", "response.in_progress", "response.incomplete"]
    with claude.messages.stream(model="x", messages=[USER], max_tokens=0) as stream:
        assert stream.get_final_message().stop_reason == "max_tokens"
    roles = [chunk.choices[0].delta.role for chunk in gpt.chat.completions.create(model="x", messages=[USER], max_tokens=0, stream=True)]
    assert roles == ["assistant", None]
    assert [event["stop"] for event in drained(Stream(served.url, {"prompt": "?", "n_predict": 0}, "/completion"))] == [True]


def test_one_model(gpt: openai.OpenAI, served: Served):
    found = gpt.models.retrieve("org/stub")
    assert (found.id, found.object, found.owned_by) == ("org/stub", "model", "edgekv") and found.created > 0
    assert served.ask("/models/org/stub").status == 200
    with pytest.raises(openai.NotFoundError) as refusal:
        gpt.models.retrieve("gpt-x")
    assert refusal.value.code == "model_not_found" and "no model 'gpt-x' here" in refusal.value.message


@pytest.mark.parametrize(("path", "body", "option"), [
    ("/v1/embeddings", {"input": "x"}, "--embeddings"), ("/v1/rerank", {"query": "x", "documents": ["y"]}, "--reranking"),
])
def test_what_the_server_was_not_started_for(served: Served, path: str, body: dict, option: str):
    reply = served.ask(path, body)
    assert reply.status == 501 and f"edgekv serve MODEL -- {option}" in reply.body["error"]["message"]
