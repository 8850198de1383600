"""Requests that nobody means well: 4xx, never 5xx, and the server is as it was before.

501 is what upstream answers for what this server was not started with (embeddings, slots on disk): that is no failure of its.
"""

import contextlib
import json
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients import Endpoint, request_bytes
from support.local_server import options

from edgekv.server.server import Server

CHAT, DEEP = "/v1/chat/completions", 100_000
N_RANDOM = 150
NOT_OFFERED = 501


@pytest.fixture(scope="module")
def endpoint(synthetic) -> Iterator[Endpoint]:
    with contextlib.ExitStack() as dawdling, Server(options(synthetic("llama"), n_slots=4, n_ctx=2048, extra=("--timeout", "5"))) as running:
        yield Endpoint(running)
        for data in (b"", b"POST /completion HTTP/1.1\r\n", request_bytes("/completion", chat())[:-1]):
            dawdling.enter_context(Endpoint(running).send(data))
        # upstream's own limit is an hour, and it waits for them when it stops
        ends = threading.Thread(target=running.stop)
        ends.start()
        ends.join(600)
        assert not ends.is_alive() and running._argv().count("--timeout") == 2, "clients that dawdle keep the server from its end"


@pytest.fixture(autouse=True)
def as_before(endpoint) -> Iterator[None]:
    """The server is healthy, idle, and gives the same answer as before."""
    before = endpoint.complete("what it always says", 6)["content"]
    yield
    assert endpoint.ask("GET", "/health")[0] == 200, "the server is not healthy"
    endpoint.seconds_until_idle(20)
    assert endpoint.complete("what it always says", 6)["content"] == before, "it says something else than before"


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, **fields}).encode()


def nested(n: int, opening: str = "[", closing: str = "]", core: str = "1") -> bytes:
    return (opening * n + core + closing * n).encode()


def with_field(name: str, value: bytes) -> bytes:
    return chat()[:-1] + f', "{name}": '.encode() + value + b"}"


def refused(endpoint: Endpoint, path: str, body: bytes, kind: str = "invalid_request_error") -> str:
    """The message of a 400 of this type."""
    status, answer = endpoint.ask("POST", path, body)
    assert status == 400, (status, answer[:300])
    error = json.loads(answer)["error"]
    assert error["type"] == kind and "exception" not in error["message"] and "[json" not in error["message"], "no words of a library"
    return str(error["message"])


# ---- what is wrong for certain ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [
    b"", b"null", b"3", b"[]", b"{}", b'{"messages":', b"\xff\xfe\x00", b"hello", chat()[:-1], b'{"messages":3}', b'{"messages":[3]}',
    b'{"messages":[null]}', b'{"messages":[{"role":"user"}]}', b'{"messages":[{"content":"x"}]}', b'{"messages":[{"role":3,"content":"x"}]}',
    b'{"messages":[{"role":"user","content":3}]}', b'{"messages":[{"role":"user","content":[{"type":"text","text":5}]}]}',
    b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}',
    b'{"messages":[{"role":"user","content":"\xff\xfe\xc3"}]}', b'{"messages":[{"role":"user","content":"\\ud800"}]}',
    chat(tools="x", grammar='root ::= "a"', json_schema={}),
    chat(tools=3), chat(tools=[3]), chat(tools=[{"type": "function"}]), chat(tools=[{"type": "function", "function": {"name": 3}}]),
    chat(reasoning_format=3), chat(max_tokens="many"), chat(temperature="hot"), chat(top_k=[]), chat(seed="x"),
    chat(n=-1), chat(n=10**9), chat(top_logprobs=3),
], ids=lambda body: body[:60].decode("latin-1"))
def test_bodies_that_are_none(endpoint, body):
    assert refused(endpoint, CHAT, body)


@pytest.mark.parametrize("fields", [
    {"grammar": "root ::= ((("}, {"grammar": "root ::= foo"}, {"grammar": 'x ::= "a"'}, {"grammar": 'root ::= root "a"'},
    {"grammar": 'root ::= "\\'}, {"grammar": 'root ::= "\\xZZ" [z-a]'}, {"grammar": 'root ::= (("a"{1,1000}){1,1000}){1,1000}'},
    {"json_schema": {"$ref": "#/nowhere"}}, {"json_schema": {"type": "nope"}}, {"json_schema": {"type": 3}}, {"json_schema": "x"},
    {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}, {"json_schema": {"enum": 3}},
    {"json_schema": {"type": "object", "properties": 3}}, {"json_schema": {"type": "string", "minLength": "x"}},
], ids=str)
def test_grammars_and_schemas_that_are_none(endpoint, fields):
    assert refused(endpoint, CHAT, chat(**fields))


def escaped(text: str) -> bytes:
    """A string of JSON with all its characters behind escapes."""
    return b'"' + "".join(f"\\u{ord(letter):04x}" for letter in text).encode() + b'"'


def call_with(arguments: bytes, name: bytes = b'"arguments"') -> bytes:
    """A chat whose tool call has these bytes as its arguments."""
    call = b'{"id":"1","type":"function","function":{"name":"f",' + name + b":" + arguments + b"}}"
    return (b'{"max_tokens":3,"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[' + call +
            b']},{"role":"tool","tool_call_id":"1","content":"x"}]}')


TOO_DEEP = "nested more than 200 levels deep"


@pytest.mark.parametrize(("path", "body", "sentence"), [
    (CHAT, nested(DEEP), TOO_DEEP), (CHAT, nested(DEEP, '{"a":', "}"), TOO_DEEP), ("/tokenize", b'{"content":' + nested(DEEP) + b"}", TOO_DEEP),
    (CHAT, with_field("zz", nested(DEEP, '{"a":', "}")), TOO_DEEP), (CHAT, with_field("chat_template_kwargs", nested(DEEP, '{"a":', "}")), TOO_DEEP),
    (CHAT, with_field("json_schema", nested(DEEP, '{"type":"array","items":', "}", "{}")), TOO_DEEP),
    (CHAT, with_field("json_schema", nested(DEEP, "[", "")), TOO_DEEP), ("/v1/messages", b'{"messages":' + nested(DEEP) + b"}", TOO_DEEP),
    (CHAT, chat(json_schema={"type": "string", "pattern": "^" + "(" * DEEP + "$"}), TOO_DEEP),
    (CHAT, chat(messages=[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {
        "name": "f", "arguments": nested(DEEP, '{"a":', "}").decode()}}]}, {"role": "tool", "tool_call_id": "1", "content": "x"}]), TOO_DEEP),
    (CHAT, call_with(escaped(nested(DEEP).decode())), TOO_DEEP), (CHAT, call_with(escaped(nested(DEEP, '{"a":', "}").decode())), TOO_DEEP),
    (CHAT, call_with(json.dumps(nested(DEEP, '{"a":', "}").decode()).encode(), escaped("arguments")), TOO_DEEP),
    (CHAT, call_with(escaped('{"arguments":' + json.dumps(nested(DEEP).decode()) + "}")), TOO_DEEP),
    ("/v1/responses", b'{"input":[{"type":"function_call","call_id":"1","name":"f","arguments":' + escaped(nested(DEEP).decode()) + b"}]}", TOO_DEEP),
    (CHAT, with_field("json_schema", b'{"type":"string","pattern":' + escaped("^" + "(" * DEEP + "$") + b"}"), TOO_DEEP),
    (CHAT, with_field("json_schema", b'{"type":"string",' + escaped("pattern") + b':"^' + b"(" * DEEP + b'$"}'), TOO_DEEP),
    (CHAT, chat(grammar="root ::= " + "(" * DEEP + '"a"' + ")" * DEEP), "failed to parse grammar"),
    (CHAT, chat(grammar="root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1}" for i in range(DEEP)) + f'\na{DEEP} ::= "x"'), "failed to parse grammar"),
    (CHAT, chat(grammar="root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1} a{i + 1} | a{i + 1}" for i in range(40)) + '\na40 ::= "x" | ""'),
     "the grammar is too ambiguous"),
], ids=range(20))
def test_a_stack_does_not_overflow(endpoint, path, body, sentence):
    """Without the guards each of these ends the process or holds it for ever."""
    assert sentence in refused(endpoint, path, body)


@pytest.mark.parametrize("body", [
    with_field("json_schema", nested(80, '{"type":"array","items":', "}", "{}")), with_field("zz", nested(190)),
    chat(messages=[{"role": "user", "content": "[" * 220 + "(" * 220}]), chat(stop=["["] * 300),
    chat(grammar="root ::= " + "(" * 500 + '"a"' + ")" * 500),
    chat(grammar="root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1} | a{i + 1}" for i in range(60)) + '\na60 ::= "x"'),
    chat(json_schema={"type": "string", "pattern": "^" + "(" * 100 + "a" + ")" * 100 + "$"}), call_with(escaped(nested(150, '{"a":', "}").decode())),
    call_with(json.dumps(json.dumps({"text": "[" * 300 + '"' + "{" * 300, "more": "\\" * 300})).encode()),
], ids=range(9))
def test_what_is_only_unusual_passes(endpoint, body):
    status, answer = endpoint.ask("POST", CHAT, body)
    assert status == 200, answer[:300]


@pytest.mark.parametrize(("method", "path", "body"), [
    ("POST", "/detokenize", b'{"tokens":[99999999]}'), ("POST", "/detokenize", b'{"tokens":[-1]}'), ("POST", "/detokenize", b'{"tokens":"x"}'),
    ("POST", "/tokenize", b'{"content":3}'), ("POST", "/completion", b'{"prompt":[99999999,-1]}'), ("POST", "/completion", b'{"prompt":{}}'),
    ("POST", "/completion", b'{"prompt":"x","n_predict":"y"}'),
    ("POST", "/v1/messages", b"nonsense"), ("POST", "/v1/responses", b"nonsense"),
    ("POST", "/v1/messages", b"{}"), ("POST", "/v1/responses", b"{}"), ("POST", "/v1/responses", b'{"input":[3]}'),
    ("POST", "/apply-template", b'{"messages":[3]}'), ("GET", "/nope", b""), ("DELETE", CHAT, b"{}"), ("PUT", CHAT, b"{}"), ("GET", CHAT, b""),
    ("FOO", "/health", b""), ("GET", "/" + "a" * 20_000, b""), ("GET", "/../../etc/passwd", b""), ("GET", "/%2e%2e/%2e%2e/etc/passwd", b""),
    ("POST", "/v1/embeddings", b'{"input":"x"}'), ("POST", "/slots/99?action=erase", b"{}"), ("POST", "/props", b"{}"),
])
def test_routes_and_methods(endpoint, method, path, body):
    status, answer = endpoint.ask(method, path, body)
    assert 400 <= status < 500 or status == NOT_OFFERED and b"not_supported_error" in answer, (status, answer[:300])
    assert b"exception" not in answer and b"[json" not in answer, answer


def test_huge_bodies(endpoint):
    assert "maximum context length is" in refused(endpoint, CHAT, chat(messages=[{"role": "user", "content": "x" * 2_000_000}]), "exceed_context_size_error")
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {110 << 20}\r\n\r\n".encode()  # more than it takes
    with endpoint.send(head) as client, contextlib.suppress(ConnectionError):  # the server may answer and hang up before it has all bytes
        for _ in range(110):
            client.sendall(bytes(1 << 20))
        assert b" 413 " in client.recv(4096).split(b"\r\n", 1)[0]


# ---- anything at all ---------------------------------------------------------------------------------------------------------

ODD = (None, True, -1, 0, 3, 2**31, 2**63, 1e308, -1e308, 0.5, "", "x", "\0", "ü" * 300, [], [[]], [None], {}, {"a": {"b": []}}, [3, "x"])
FIELDS = ("messages", "max_tokens", "temperature", "top_k", "top_p", "min_p", "stop", "seed", "n", "logprobs", "top_logprobs", "logit_bias", "stream",
          "tools", "tool_choice", "response_format", "grammar", "json_schema", "stream_options", "model", "n_probs", "samplers", "penalty_last_n",
          "dry_sequence_breakers", "lora", "id_slot", "cache_prompt", "chat_template_kwargs", "reasoning_format", "n_keep", "mirostat", "min_keep",
          "t_max_predict_ms", "grammar_lazy", "grammar_triggers", "preserved_tokens", "presence_penalty", "xtc_probability", "typical_p",
          "parallel_tool_calls", "return_progress", "timings_per_token", "prompt", "input", "user", "metadata", "max_completion_tokens")


def random_body(rng: random.Random) -> bytes:
    """A request with some odd fields and some changed bytes."""
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi"}
    body |= {rng.choice(FIELDS): rng.choice(ODD) for _ in range(rng.randint(1, 4))}
    body |= {"n_predict": 2, "max_tokens": 2} if rng.random() < 0.8 else {"n_predict": 2}
    data = bytearray(json.dumps(body).encode())
    if rng.random() < 0.4:
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)


def test_random_requests(endpoint):
    rng = random.Random(15)
    counts: dict[int, int] = {}
    for _ in range(N_RANDOM):
        path = rng.choice((CHAT, "/completion", "/v1/completions", "/v1/messages", "/v1/responses", "/tokenize", "/apply-template", "/infill"))
        body = random_body(rng)
        status, answer = endpoint.ask("POST", path, body)
        counts[status] = counts.get(status, 0) + 1
        assert 200 <= status < 500 or status == NOT_OFFERED and b"not_supported_error" in answer, (path, body, status, answer[:300])
    assert counts.get(200, 0) > 10 and counts.get(400, 0) > 10, counts


# ---- connections -------------------------------------------------------------------------------------------------------------


HEAD = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("data", [
    b"\r\n\r\n", b"\0" * 1000, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100,
    b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n", b"GET /health HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    HEAD + b"Content-Length: -5\r\n\r\nxxxxx", HEAD + b"Content-Length: x\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"\xff" * 5000 + b"\r\n\r\n",
], ids=lambda data: data[:30].decode("latin-1"))
def test_bytes_that_are_no_http(endpoint, data):
    with contextlib.suppress(ConnectionError), endpoint.send(data) as client:  # the server may hang up, but not accept
        hangs_on(client)
        status = client.recv(4096).split(b"\r\n", 1)[0]
        assert not status or b" 4" in status, status


def hangs_on(client: socket.socket) -> bool:
    """Stop sending. False: the server has hung up before."""
    try:
        client.shutdown(socket.SHUT_WR)
    except OSError:
        return False
    return True


def test_slow_and_half_closed_clients_hinder_nobody(endpoint):
    body = chat()
    half = request_bytes(CHAT, body)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(endpoint.send(half[: random.Random(i).randrange(1, len(half) - 1)])) for i in range(40)]
        assert endpoint.ask("POST", CHAT, body)[0] == 200, "others wait for the slow ones"
        for client in slow[::2]:  # half of them stop sending and listen
            with contextlib.suppress(ConnectionError):
                if hangs_on(client):
                    assert b" 200 " not in client.recv(4096)[:20]
    with endpoint.send(half) as whole:  # a request may be complete before its sender stops sending
        hangs_on(whole)
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = whole.recv(4096)
        assert not answer or b" 200 " in answer[:20]


def test_a_client_that_does_not_read_hinders_nobody(endpoint):
    """The unread answer waits in its slot; the others have three slots."""
    stuck = [endpoint.send(request_bytes("/completion", json.dumps({"prompt": "x", "n_predict": 400, "ignore_eos": True, "stream": True,
                                                                     "n_probs": 200}).encode())) for _ in range(3)]
    assert endpoint.complete("others", 4)["content"]
    for client in stuck:
        client.close()
