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
from support.clients import send

HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
def chat(endpoint):
    client = openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="secret", max_retries=0)

    def ask(**settings):
        return client.chat.completions.create(**{"model": "smol", "messages": HELLO, "max_completion_tokens": 8, "temperature": 0, **settings})

    return ask


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


def test_a_seed_repeats(chat):
    first, again, other = (chat(temperature=1.5, seed=seed, max_completion_tokens=16).choices[0].message.content for seed in (1, 1, 2))
    assert first == again != other


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


@pytest.mark.parametrize("key", ["secre", "secrets", "Secret", "x", "secretsecret", "sécret", "# ours"])
def test_another_key_opens_nothing(endpoint, key):
    reply = endpoint.ask("/v1/models", key=key.encode().decode("latin-1"))
    assert reply.status == 401 and reply.body["error"]["type"] == "authentication_error"


def test_keys_open(endpoint):
    for key in ("secret", "other"):
        assert endpoint.ask("/v1/models", key=key).status == 200
    assert send(endpoint.url, "/v1/models", **{"X-Api-Key": "other"}).status == 200
    assert send(endpoint.url, "/v1/models").status == 401
    assert send(endpoint.url, "/health").status == 200, "whether it lives is no secret"


# ---- lines of a shell ------------------------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parent.parent.parent


def curl_lines() -> list[str]:
    lines = []
    for name in ("README.md", "cli/README.md"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
        lines += [re.sub(r" +", " ", line.strip()) for line in text.splitlines() if re.match(r" *curl ", line)]
    assert len(lines) >= 3 and all("127.0.0.1:8080" in line for line in lines)
    return lines


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
