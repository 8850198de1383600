"""Clients of others: OpenAI's and Anthropic's own, which check the shape of each answer, and the lines of the READMEs."""

import http.client
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import openai
import pytest
from support.stub_server import stubbed

HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def client(endpoint) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="secret", max_retries=0)


@pytest.fixture
def chat(client):
    def ask(**settings):
        return client.chat.completions.create(**{"model": "smol", "messages": HELLO, "max_completion_tokens": 8, "temperature": 0, **settings})

    return ask


def test_models(client):
    assert [model.id for model in client.models.list()] == ["smol"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_answer_ends_where_it_shall(client, name):
    answer = client.chat.completions.create(model="smol", messages=HELLO, temperature=0, **{name: 3})
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 3 and answer.choices[0].message.role == "assistant"


def test_a_stream_is_the_answer_in_pieces(chat):
    whole = chat(extra_body={"cache_prompt": False})
    chunks = list(chat(stream=True, stream_options={"include_usage": True}, extra_body={"cache_prompt": False}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content and len(chunks) > 4
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage.model_copy(update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details})
    assert not chunks[-1].choices and {chunk.id for chunk in chunks} == {chunks[0].id}
    assert all(chunk.usage is None for chunk in chat(stream=True)), "only where it is asked for"


def test_a_connection_stays_open_behind_a_stream(endpoint):
    """As its header says. A client that holds it would ask again in the moment when it closes, and get no answer."""
    connection = http.client.HTTPConnection(endpoint.url.removeprefix("http://"), timeout=120)
    connection.connect()
    held = connection.sock
    for _ in range(2):
        connection.request("POST", "/v1/chat/completions", json.dumps({"messages": HELLO, "max_tokens": 2, "stream": True}),
                           {"Content-Type": "application/json", "Authorization": "Bearer secret"})
        answer = connection.getresponse()
        assert answer.read().endswith(b"data: [DONE]\n\n") and answer.headers["Keep-Alive"] and connection.sock is held
    held.close()


def test_what_was_read_before_is_counted(chat):
    text = [{"role": "user", "content": "The river is calm. " * 30 + "Is it?"}]
    chat(messages=text)
    again = chat(messages=text).usage
    assert again.prompt_tokens_details.cached_tokens >= again.prompt_tokens - 2
    told = again.edgekv["prefix_cache"]
    assert (told["tokens"], told["tier"]) == (again.prompt_tokens_details.cached_tokens, "slot") and set(told) == {"tokens", "tier", "reason", "at_token"}


def test_stop(chat):
    whole = chat(max_completion_tokens=16).choices[0].message.content
    word = whole.split()[2]
    for stop in (word, [word, "nonsense"]):
        cut = chat(max_completion_tokens=16, stop=stop).choices[0]
        assert cut.message.content == whole[: whole.index(word)] and cut.finish_reason == "stop"


def test_a_seed_repeats(chat):
    first, again, other = (chat(temperature=1.5, seed=seed, max_completion_tokens=16).choices[0].message.content for seed in (1, 1, 2))
    assert first == again != other


def test_several_answers(chat):
    answers = chat(n=2, temperature=1.5, seed=3).choices
    assert [choice.index for choice in answers] == [0, 1] and all(choice.message.content for choice in answers)


def test_more_answers_than_slots_come_in_turns(chat):
    """The request counts as one in the queue, and its usage is that of all answers."""
    answer = chat(n=5, temperature=1.5, seed=3, max_completion_tokens=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3, 4]
    assert len({choice.message.content for choice in answer.choices}) > 1, "each has a seed of its own"
    alone = chat(max_completion_tokens=7)
    assert answer.usage.completion_tokens == 5 * alone.usage.completion_tokens == 35
    assert answer.usage.prompt_tokens == alone.usage.prompt_tokens
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 35
    greedy = chat(n=5, max_completion_tokens=7)
    assert {choice.message.content for choice in greedy.choices} == {alone.choices[0].message.content}


def test_more_answers_than_slots_stream(client):
    texts: dict[int, str] = {}
    with client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hello"}], n=4, max_completion_tokens=6, temperature=0,
                                        stream=True) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert sorted(texts) == [0, 1, 2, 3] and len(set(texts.values())) == 1 and texts[0]


def test_too_many_answers_are_refused(chat):
    with pytest.raises(openai.BadRequestError, match="'n' is 129; it must be an integer from 1 to 128"):
        chat(n=129)


def test_usage_of_several_prompts_with_several_answers(endpoint):
    answer = endpoint.ask("/v1/completions", {"prompt": ["one two", "three four five six"], "n": 3, "max_tokens": 4, "ignore_eos": True}).body
    alone = [endpoint.ask("/v1/completions", {"prompt": prompt, "max_tokens": 4, "ignore_eos": True}).body["usage"]["prompt_tokens"]
             for prompt in ("one two", "three four five six")]
    assert len(answer["choices"]) == 6
    assert answer["usage"]["prompt_tokens"] == sum(alone) and answer["usage"]["completion_tokens"] == 24


def test_logprobs(chat):
    content = chat(logprobs=True, top_logprobs=3, max_completion_tokens=4).choices[0].logprobs.content
    assert len(content) == 4
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3 and bytes(token.bytes).decode("utf-8", "replace") == token.token
        assert token.top_logprobs[0].token == token.token, "the best, at temperature 0"
    with pytest.raises(openai.BadRequestError, match="top_logprobs requires logprobs"):
        chat(top_logprobs=3)


def test_a_template_without_tools_calls_none(tmp_path):
    """No call is a mistake only where one is required: many clients offer tools to every model."""
    with stubbed(tmp_path, "Prose.") as served:
        body = {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]}
        assert served.ask("/v1/chat/completions", body).status == 200
        reply = served.ask("/v1/chat/completions", {**body, "tool_choice": "required"})
    assert reply.status == 400 and "the model's chat template knows no tools" in reply.body["error"]["message"]


# ---- lines of a shell ------------------------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parent.parent.parent


def curl_lines() -> list[str]:
    lines = []
    for name in ("README.md", "cli/README.md"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
        lines += [re.sub(r" +", " ", line.strip()) for line in text.splitlines() if re.match(r" *curl ", line)]
    return lines


def test_the_readmes_have_such_lines():
    assert len(curl_lines()) >= 3 and all("127.0.0.1:8080" in line for line in curl_lines())


@pytest.mark.parametrize("line", curl_lines())
def test_lines_of_the_readmes_work(endpoint, line):
    """Each line works at this server's address, with its key."""
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    words = shlex.split(line.replace("http://127.0.0.1:8080", endpoint.url).split(" # ")[0])
    done = subprocess.run([*words, "-sS", "--fail-with-body", "-H", "Authorization: Bearer secret"], capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0 and done.stdout.strip(), (done.stdout, done.stderr)
    assert '"error"' not in done.stdout
