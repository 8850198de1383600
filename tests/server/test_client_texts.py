"""Names, patterns, grammars and pictures of a request that llama.cpp ends or hangs on are refused, and the server goes on. The texts are made as they run."""

import base64
from pathlib import Path

import pytest
from support import vision
from support.clients import CHAT
from support.serve_process import Served, serving
from support.stub_server import stub_server

LONG = "n" * 5_000
GRAMMAR = 'root ::= "word" [a-z ]*'
SAID = [b"a ", b"word", b", and", b" more"]

served = stub_server(SAID, "--ctx", "512")


def refused(served: Served, path: str, body: object, why: str) -> None:
    reply = served.ask(path, body)
    assert reply.status == 400 and why in reply.body["error"]["message"], reply.text
    assert served.ask("/health").status == 200


@pytest.mark.parametrize("schema", [{"properties": {LONG: {"type": "string"}}}, {"$ref": f"#/$defs/{LONG}", "$defs": {LONG: {"type": "string"}}}])
def test_a_long_name_in_a_schema(served: Served, schema: dict):
    asked = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 1}
    for body in (asked | {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object", **schema}}}},
                 asked | {"tools": [{"type": "function", "function": {"name": "call", "parameters": {"type": "object", **schema}}}]}):
        refused(served, CHAT, body, "bytes; at most 4096 are allowed")
    refused(served, "/completion", {"prompt": "?", "json_schema": {"type": "object", **schema}}, "bytes; at most 4096 are allowed")


def test_a_long_name_of_a_tool(served: Served):
    tool = {"type": "function", "function": {"name": LONG, "parameters": {"type": "object"}}}
    refused(served, CHAT, {"messages": [{"role": "user", "content": "?"}], "tools": [tool]}, "a name in the request has 5000 bytes")


def lazy(kind: int, value: str, **more: int) -> dict:
    return {"prompt": "?", "n_predict": 20, "temperature": 0, "grammar": GRAMMAR, "grammar_lazy": True,
            "grammar_triggers": [{"type": kind, "value": value, **more}]}


@pytest.mark.parametrize("kind, value, why", [
    (-1, "x", "a type in grammar_triggers"), (7, "x", "a type in grammar_triggers"), (1, LONG, "longer than 1024 characters"),
    (2, LONG, "longer than 1024 characters"), (2, "(a?){40}{40}", "longer than 1024 characters"), (3, "(" * 600 + ")" * 600, "longer than 1024 characters"),
    (2, "(?=[^b]*c)a", "looks ahead without end"), (2, "(a|b)\\1", "cannot be used"), (2, "a)|(b", "closes nothing"),
    (2, "(", "Failed to initialize samplers")])
def test_a_trigger_that_cannot_be_searched(served: Served, kind: int, value: str, why: str):
    refused(served, "/completion", lazy(kind, value), why)


@pytest.mark.parametrize("kind, value", [(1, "word"), (2, "w[a-z]rd"), (2, "a (word)"), (2, "^a (word)"), (2, "(?:^|x)[^w]*?(word)"), (3, "[^w]*(word)[^x]*")])
def test_a_trigger_starts_the_grammar_where_it_matches(served: Served, kind: int, value: str):
    """The grammar has no comma, so it is seen where it begins."""
    content = served.ask("/completion", lazy(kind, value)).body["content"]
    assert content.startswith("a word") and "," not in content


@pytest.mark.parametrize("grammar", ['root ::= "a"{3,1}', 'root ::= ("a" | "b"){2,0}'])
def test_a_repeat_below_its_minimum(served: Served, grammar: str):
    refused(served, "/completion", {"prompt": "?", "n_predict": 1, "grammar": grammar}, "failed to parse grammar")


def test_a_parser_of_answers(served: Served):
    inside_itself = '{"parsers":[{"type":"sequence","children":[0]}],"rules":{},"root":0}'
    refused(served, "/completion", {"prompt": "?", "n_predict": 1, "chat_parser": inside_itself}, "chat_parser cannot be given")


def test_a_picture_that_is_too_thin(tmp_path: Path):
    model, projector = vision.qwen2vl_text(tmp_path / "model.gguf"), vision.qwen2vl(tmp_path / "projector.gguf")
    with serving(tmp_path, str(model), "--mmproj", str(projector), "--ctx", "512") as served:
        marker = served.ask("/props").body["media_marker"]
        for width, height, status in ((2_010, 10, 400), (10, 2_010, 400), (2_000, 10, 200)):
            picture = base64.b64encode(vision.picture(0, width, height)).decode()
            reply = served.ask("/completion", {"prompt": {"prompt_string": f"a{marker}b", "multimodal_data": [picture]}, "n_predict": 1})
            assert reply.status == status and (status == 200 or "200 times the other" in reply.body["error"]["message"]), reply.text
