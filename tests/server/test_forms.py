"""The form that a request orders for its answer holds in every API, or the request is refused and names what would not hold."""

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel
from support.clients import CHAT, Reply
from support.serve_process import Served, serving
from support.stub import write_stub

COMPLETIONS, RESPONSES, MESSAGES = "/v1/completions", "/v1/responses", "/v1/messages"
TURN = [{"role": "user", "content": "?"}]
WORD = {"type": "object", "properties": {"word": {"const": "ok"}}, "required": ["word"], "additionalProperties": False}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("forms")
    with serving(home, str(write_stub(home / "stub.gguf", "All is well. "))) as started:
        yield started


def refusal(reply: Reply) -> str:
    assert reply.status == 400, reply.text
    return reply.body["error"]["message"]


def asked(path: str, form: Any, limit: int = 64) -> dict[str, Any]:
    """A request with `form`, in the field that the path's API has for it."""
    if path == CHAT:
        return {"messages": TURN, "max_tokens": limit, "temperature": 0, "response_format": form}
    if path == COMPLETIONS:
        return {"prompt": "?", "max_tokens": limit, "temperature": 0, "response_format": form}
    if path == RESPONSES:
        return {"input": "?", "max_output_tokens": limit, "temperature": 0, "text": {"format": form}}
    return {"messages": TURN, "max_tokens": limit, "temperature": 0, "output_config": {"format": form}}


def said(path: str, reply: Reply) -> str:
    assert reply.status == 200, reply.text
    if path in (CHAT, COMPLETIONS):
        choice = reply.body["choices"][0]
        return choice["message"]["content"] if path == CHAT else choice["text"]
    return (reply.body["content"] if path == MESSAGES else reply.body["output"][0]["content"])[0]["text"]


@pytest.mark.parametrize(("path", "form"), [
    (CHAT, {"type": "json_schema", "json_schema": {"name": "x", "schema": WORD}}), (CHAT, {"type": "json_schema", "schema": WORD}),
    (COMPLETIONS, {"type": "json_schema", "json_schema": {"schema": WORD}}), (RESPONSES, {"type": "json_schema", "name": "x", "schema": WORD}),
    (MESSAGES, {"type": "json_schema", "schema": WORD}), (CHAT, {"type": "json_object", "schema": WORD}),
])
def test_a_schema_holds(served: Served, path: str, form: dict):
    assert "".join(said(path, served.ask(path, asked(path, form))).split()) == '{"word":"ok"}'


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_an_object_holds(served: Served, path: str):
    forced = said(path, served.ask(path, asked(path, {"type": "json_object"}, 4)))
    assert forced.startswith("{") if path == COMPLETIONS else not forced.startswith("All"), forced  # chats may begin with a fence
    assert said(path, served.ask(path, asked(path, {"type": "text"}))) == "All is well. "


def test_the_older_name_of_messages_form(served: Served):
    body = {"messages": TURN, "max_tokens": 64, "output_format": {"type": "json_schema", "schema": WORD}}
    assert "".join(said(MESSAGES, served.ask(MESSAGES, body)).split()) == '{"word":"ok"}'


def test_openai_parses(served: Served):
    class Answer(BaseModel):
        word: Literal["ok"]

    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    assert client.responses.parse(model="x", input="?", text_format=Answer).output_parsed == Answer(word="ok")
    assert client.chat.completions.parse(model="x", messages=TURN, response_format=Answer).choices[0].message.parsed == Answer(word="ok")


@pytest.mark.parametrize(("form", "why"), [
    ({}, "has no such type"), ({"type": 5}, "has no such type"), ({"type": "json_schema"}, "asks for a schema and has none"),
    ({"type": "json_schema", "schema": 5}, "asks for a schema and has none"), ({"type": "json_schema", "json_schema": {"schema": 5}}, "asks for a schema"),
])
def test_no_form_is_refused(served: Served, form: dict, why: str):
    for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
        assert why in refusal(served.ask(path, asked(path, form)))


PASSED_OVER = [
    ({"type": "string", "pattern": "a+"}, "pattern"), ({"type": "string", "pattern": r"^\bx$"}, "pattern"), ({"type": "string", "format": "email"}, "format"),
    ({"type": "number", "minimum": 10, "maximum": 12}, "minimum"), ({"type": "number", "exclusiveMaximum": 3}, "exclusiveMaximum"),
    ({"type": "integer", "multipleOf": 5}, "multipleOf"), ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {"const": 1}}, "contains"), ({"type": "object", "minProperties": 2}, "minProperties"),
    ({"type": "object", "maxProperties": 2}, "maxProperties"), ({"type": "object", "patternProperties": {"^a": {"type": "null"}}}, "patternProperties"),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"), ({"type": "object", "required": ["a"]}, "required"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"), ({"not": {"type": "string"}}, "not"),
    ({"type": "string", "if": {"minLength": 3}, "then": {"maxLength": 5}}, "if"), ({"minimum": 3}, "minimum"),
]
BESIDE = [
    ({"type": "string", "pattern": "^a+$", "minLength": 3}, "minLength"), ({"type": "string", "format": "date", "maxLength": 3}, "maxLength"),
    ({"$ref": "#/$defs/a", "minLength": 3, "$defs": {"a": {"type": "string"}}}, "minLength"), ({"enum": ["a", "bc"], "minLength": 2}, "minLength"),
    ({"type": "object", "properties": {"a": {"type": "null"}}, "allOf": [{"properties": {"b": {"type": "null"}}}]}, "allOf"),
    ({"anyOf": [{"type": "null"}, {"type": "string"}], "maxLength": 3}, "maxLength"), ({"type": "array", "items": {}, "prefixItems": [{}]}, "prefixItems"),
    ({"type": "array", "prefixItems": [{"type": "null"}], "minItems": 2}, "minItems"), ({"allOf": [{"type": "string"}, {"minLength": 3}]}, "allOf"),
    ({"type": "integer", "minimum": 3, "exclusiveMinimum": 5}, "exclusiveMinimum"),
]
"""The word counts alone, and has no effect beside another."""
ENFORCED = [
    {"type": "string", "pattern": "^a+$"}, {"type": "string", "minLength": 2, "maxLength": 3}, {"type": "string", "format": "date-time"},
    {"type": "integer", "minimum": 10, "maximum": 12}, {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2},
    {"type": "array", "prefixItems": [{"type": "null"}], "minItems": 1}, {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 3}]},
    {"type": ["string", "null"], "minLength": 1}, {"enum": ["a", 1, None], "description": "x"}, {"type": "string", "minimum": 3, "x-own": 1},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/a"}}}}},
    {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": False, "title": "x", "minProperties": 0},
    {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"enum": ["x"]}}},
]


def inside(schema: dict) -> dict:
    """An object whose property `a` is the schema."""
    return {"type": "object", "properties": {"a": schema}} | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def grammar(served: Served, schema: dict) -> str:
    """What upstream makes of it, which /completion shows, and which it does not check."""
    reply = served.ask("/completion", {"prompt": "?", "n_predict": 1, "json_schema": schema})
    assert reply.status == 200, reply.text
    return reply.body["generation_settings"]["grammar"]


@pytest.mark.parametrize(("schema", "word"), PASSED_OVER + BESIDE, ids=str)
def test_a_word_without_effect_is_refused_by_name(served: Served, schema: dict, word: str):
    sentence = refusal(served.ask(CHAT, asked(CHAT, {"type": "json_schema", "json_schema": {"schema": inside(schema)}})))
    assert f"the schema in 'response_format' has '{word}' at #/properties/a" in sentence and "would not be enforced" in sentence
    assert f"'json_schema' has '{word}' at #" in refusal(served.ask(CHAT, {"messages": TURN, "json_schema": schema}))


@pytest.mark.parametrize(("schema", "word"), PASSED_OVER + [one for one in BESIDE if "allOf" not in one[0]], ids=str)
def test_what_is_refused_has_no_effect_upstream(served: Served, schema: dict, word: str):
    without = {name: value for name, value in schema.items() if name != word}
    told = grammar(served, inside(schema))
    assert told == grammar(served, inside(without)) or (word == "pattern" and "::= string\n" in told)


@pytest.mark.parametrize("schema", ENFORCED, ids=str)
def test_a_schema_that_holds_is_taken(served: Served, schema: dict):
    reply = served.ask(CHAT, asked(CHAT, {"type": "json_schema", "json_schema": {"schema": schema}}, 1))
    assert reply.status == 200, reply.text


def test_two_forms_are_refused(served: Served):
    body = asked(CHAT, {"type": "json_schema", "schema": WORD}) | {"grammar": 'root ::= "a"'}
    assert "cannot both hold for one answer" in refusal(served.ask(CHAT, body))
