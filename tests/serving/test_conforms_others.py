"""Other ways to ask: Anthropic's messages, OpenAI's responses, and the lines that the READMEs show."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def test_responses(endpoint):
    client = openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="secret", max_retries=0)
    answer = client.responses.create(model="smol", input="Say hello.", max_output_tokens=8, temperature=0)
    assert answer.output_text and answer.status in ("completed", "incomplete") and answer.usage.output_tokens <= 8
    events = list(client.responses.create(model="smol", input="Say hello.", max_output_tokens=8, temperature=0, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text and events[0].type == "response.created" and events[-1].type in ("response.completed", "response.incomplete")


def test_messages(endpoint):
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=endpoint.url, api_key="secret", max_retries=0)
    asked = {"model": "smol", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    answer = client.messages.create(**asked, system="Be brief.")
    assert answer.content[0].text and answer.usage.output_tokens <= 8 and answer.stop_reason in ("max_tokens", "end_turn")
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream)
        assert stream.get_final_message().usage.output_tokens <= 8
    assert client.messages.count_tokens(model="smol", messages=asked["messages"]).input_tokens > 4
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(**asked)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**{**asked, "messages": [{"role": "user", "content": "word " * 2000}]})


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
