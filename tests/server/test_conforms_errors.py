"""A fault gets a status, a type and one sentence, the same for clients of both dialects."""

import openai
import pytest
from support.clients import CHAT, send

HELLO = [{"role": "user", "content": "Say hello."}]


def test_a_prompt_that_is_too_long(endpoint):
    body = {"messages": [{"role": "user", "content": "word " * 2000}]}
    for stream in (False, True):
        reply = endpoint.ask(CHAT, {**body, "stream": stream})
        error = reply.body["error"]
        assert reply.status == 400 and error["type"] == "exceed_context_size_error" and error["code"] == "context_length_exceeded"
        assert error["n_ctx"] == 1024 and error["n_prompt_tokens"] > 2000 and error["message"]
    client = openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="secret", max_retries=0)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="smol", **body)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(("path", "field", "value", "sentence"), [
    (CHAT, "functions", [{"name": "f"}], "the field 'functions' is not supported; use 'tools'"),
    (CHAT, "function_call", {"name": "f"}, "use 'tool_choice'"),
    (CHAT, "audio", {"voice": "x"}, "'audio' is not supported; answers are text"),
    (CHAT, "modalities", ["text", "audio"], "'modalities' asks for audio; answers are text"),
    (CHAT, "web_search_options", {"a": 1}, "'web_search_options' is not supported"),
    (CHAT, "response_format", {"type": "xml"}, "response_format type must be one of"),
    (CHAT, "tools", [{"type": "web_search"}], "Unsupported tool type"),
    ("/v1/completions", "suffix", "end", "'suffix' is not supported"),
    ("/v1/completions", "best_of", 4, "'best_of' is not supported above 'n'"),
    ("/v1/responses", "previous_response_id", "x", "'previous_response_id' is not supported; send the whole conversation"),
    ("/v1/responses", "background", True, "'background' is not supported; ask with 'stream'"),
    ("/v1/responses", "conversation", "c1", "'conversation' is not supported; send the whole conversation"),
    ("/v1/messages", "mcp_servers", [{"url": "x"}], "'mcp_servers' is not supported"),
])
def test_fields_that_are_known_and_not_served_are_named(endpoint, path, field, value, sentence):
    base = {"messages": HELLO, "prompt": "Say", "input": "Say hello.", "max_tokens": 2}
    reply = endpoint.ask(path, {**{name: base[name] for name in _NEEDED[path]}, field: value})
    assert reply.status == 400 and sentence in reply.body["error"]["message"]
    assert reply.body["error"]["type"] == "invalid_request_error"


_NEEDED = {CHAT: ("messages",), "/v1/completions": ("prompt",), "/v1/responses": ("input",), "/v1/messages": ("messages", "max_tokens")}


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


