"""The form that a request orders for its answer holds in every API, or the request is refused and names what would not hold."""

import re
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel
from support.clients import CHAT, Reply
from support.dialects import COMPLETIONS, MESSAGES, RESPONSES, refusal, request
from support.dialects import said as answered
from support.serve_process import Served, serving
from support.stub import write_stub
from support.stub_server import stub_server, stubbed

TURN = [{"role": "user", "content": "?"}]
WORD = {"type": "object", "properties": {"word": {"const": "ok"}}, "required": ["word"], "additionalProperties": False}

served = stub_server("All is well. ")


def asked(path: str, form: Any, limit: int = 64) -> dict[str, Any]:
    return request(path, limit=limit, form=form)


def said(path: str, reply: Reply) -> str:
    return answered(path, reply).text


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


def test_what_llguidance_reads_otherwise_is_read_as_json_schema_means_it(tmp_path: Path):
    """llguidance 1.9.1 takes a name with an escape for another property, and Rust's classes for ECMA's: "[[:alpha:]]" is one of "[:alph" and a "]"."""
    with stubbed(tmp_path, '{"a": "z", "\\u0061": 1}') as sly:
        def answer(properties: dict, **more: Any) -> str:
            schema = {"type": "object", "properties": properties, **more}
            return said(CHAT, sly.ask(CHAT, asked(CHAT, {"type": "json_schema", "schema": schema}, 24)))

        for text in (answer({"a": {"type": "string"}}), answer({"a": {"type": "string"}, "b": {}}, additionalProperties={"type": "integer"})):
            assert text.startswith('{"a": "z"') and "u0061" not in text
        assert not answer({"a": {"type": "string", "pattern": "^[[:alpha:]]$"}}).startswith('{"a": "z')


UNENFORCED = [
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "'uniqueItems' would not be enforced"),
    ({"type": "array", "contains": {"const": 1}}, "'contains' would not"),
    ({"anyOf": [{"properties": {"a": {}}}, True], "unevaluatedProperties": False}, "'unevaluatedProperties' would not"),
    ({"prefixItems": [{}], "unevaluatedItems": False}, "'unevaluatedItems' would not"),
    ({"type": "object", "propertyNames": {"format": "uri"}}, "'propertyNames' would not"),
    ({"not": {"type": "integer"}}, "'not' would not"), ({"not": {"pattern": "a"}}, "'not' would not"),
    ({"type": "string", "if": {"format": "date"}, "then": {"maxLength": 5}}, "'if', 'then' would not"), ({"type": "string", "format": "moon"}, "format: moon"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "'oneOf' would not be enforced"), ({"type": "string", "pattern": "(?=a)b"}, "'pattern' cannot"),
    ({"not": {"type": "integer"}, "x-guidance": {"lenient": True}}, "'not' would not"), ({"$ref": "https://example.com/x"}, "example.com"),
    ({"$dynamicRef": "#it", "$defs": {"x": {"$dynamicAnchor": "it", "const": 1}}}, "'$dynamicRef' would not"),
    ({"type": "moon"}, "moon"), ({"type": "integer", "multipleOf": 10_001}, "'multipleOf' would take too long"),
    ({"type": "object", "minProperties": 2, "properties": {"a": {}}}, "min/maxProperties only supported when"),
    ({"type": "object", "patternProperties": {"(?=s)": {"type": "string"}}}, "'pattern' cannot"),
    ({"type": "object", "patternProperties": {"^s": {"const": 1}, "t": {"minimum": 1}}}, "where two of its patterns can match one name"),
]
ENFORCED = [
    ({"type": "string", "pattern": "z+", "maxLength": 16}, '".*z.*"'), ({"type": "string", "pattern": "^a+$", "minLength": 3, "maxLength": 4}, '"aaaa?"'),
    ({"enum": ["/a~2", "a", "/~", "/a~1//~0"], "format": "json-pointer"}, '"/a~1//~0"'),
    ({"enum": ["01", "1~", "/a", "1+0/a", "1-2/a"], "format": "relative-json-pointer"}, '"1-2/a"'),
    ({"type": "string", "format": "ipv4"}, r'"\d+(\.\d+){3}"'), ({"type": "string", "format": "date", "maxLength": 10}, r'"\d{4}-\d\d-\d\d"'),
    ({"type": "integer", "minimum": 10, "maximum": 12}, "1[0-2]"), ({"type": "integer", "minimum": 7, "exclusiveMaximum": 12, "multipleOf": 5}, "10"),
    ({"type": "number", "minimum": 7.5, "maximum": 7.5}, "7.50*"),
    ({"type": "object", "required": ["a"], "additionalProperties": {"const": 1}, "maxProperties": 1}, '{"a":1}'),
    ({"type": "object", "patternProperties": {"^a$": {"const": 1}}, "additionalProperties": False, "required": ["a"]}, '{"a":1}'),
    ({"enum": ["a", "bc"], "minLength": 2}, '"bc"'), ({"allOf": [{"type": "string"}, {"enum": [1, "x"]}]}, '"x"'), ({"const": None}, "null"),
    ({"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 2, "maxItems": 2}, r"\[1,2\]"),
    ({"$ref": "#/$defs/a", "minLength": 2, "$defs": {"a": {"enum": ["a", "bc"]}}}, '"bc"'), ({"anyOf": [{"const": 1}, {"const": 2}], "minimum": 2}, "2"),
    ({"oneOf": [{"type": "object", "properties": {"k": {"const": kind}}, "required": ["k"], "additionalProperties": False} for kind in "ab"],
      "required": ["k"]}, r'{"k":"[ab]"}'),
    ({"allOf": [{"type": "object", "properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 2}}}],
      "required": ["a", "b"], "maxProperties": 2}, '{"a":1,"b":2}'), ({"type": "string", "minimum": 3, "x-own": 1, "const": "x"}, '"x"'),
    # words that llguidance lacks, written with those that it has
    ({"enum": ["a", 1, None], "not": {"enum": ["a", 2]}}, "1|null"),
    ({"enum": [{"a": 1}, {"a": 1, "b": 2}], "dependentRequired": {"a": ["b"]}}, '{"a":1,"b":2}'),
    ({"enum": [1, 2], "if": {"const": 1}, "then": False, "else": {"maximum": 2}}, "2"), ({"enum": ["aa", "b"], "not": {"minLength": 2}}, '"b"'),
    ({"enum": [{"ab": 1}, {"a": 1}], "propertyNames": {"maxLength": 1}}, '{"a":1}'),
    ({"enum": [{"a": 1, "b": 1}, {"b": 1}], "type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, '{"b":1}'),
    ({"enum": [{"a": 1, "c": 1}, {"a": 1}], "allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, '{"a":1}'),
    ({"enum": [{"a": 1, "c": 1}, {"a": 1}], "$ref": "#/$defs/x", "unevaluatedProperties": False, "$defs": {"x": {"properties": {"a": {}}}}}, '{"a":1}'),
    ({"enum": [{"c": "x"}, {"c": 1}], "allOf": [{"additionalProperties": {"type": "integer"}}], "unevaluatedProperties": False}, '{"c":1}'),
    ({"enum": [[1], [2]], "not": {"prefixItems": [{"const": 1}]}}, r"\[2\]"), ({"const": [1, 1], "uniqueItems": False}, r"\[1,1\]"),
    ({"type": "object", "patternProperties": {"^s": {"const": 1}, "^t": {"minimum": 1}}, "additionalProperties": {"const": 3}, "required": ["st", "x"],
      "maxProperties": 2}, r'{"st":1,"x":3}'),
    ({"enum": [{"a": 1, "c": 1}, {"a": 1}], "allOf": [{"patternProperties": {"a": {}}}], "unevaluatedProperties": False}, '{"a":1}'),
    # names of schemas, and references into words that are written otherwise
    ({"$ref": "#/if", "if": {"const": 1}}, "1"), ({"$ref": "#it", "$defs": {"x": {"$anchor": "it", "const": 1}}}, "1"),
    ({"$id": "https://a.example/b", "$ref": "c", "$defs": {"c": {"$id": "c", "enum": [1, 2], "$ref": "#/$defs/it", "$defs": {"it": {"const": 2}}}}}, "2"),
]
"""And what the answer is, without spaces."""


@pytest.mark.parametrize(("schema", "why"), UNENFORCED, ids=str)
def test_what_would_not_be_enforced_is_refused_by_name(served: Served, schema: dict, why: str):
    inside = {"type": "object", "properties": {"a": schema}}
    sentence = refusal(served.ask(CHAT, asked(CHAT, {"type": "json_schema", "json_schema": {"schema": inside}})))
    assert sentence.startswith("the field 'response_format' cannot hold for the answer: ") and why in sentence
    for path, body in (("/completion", {"prompt": "?"}), (CHAT, {"messages": TURN})):
        assert f"the field 'json_schema' cannot hold for the answer: {sentence.partition(': ')[2]}" in refusal(served.ask(path, body | {"json_schema": schema}))


@pytest.mark.parametrize(("schema", "answer"), ENFORCED, ids=str)
def test_the_words_of_a_schema_hold(served: Served, schema: dict, answer: str):
    told = "".join(said(CHAT, served.ask(CHAT, asked(CHAT, {"type": "json_schema", "schema": schema}))).split())
    assert re.fullmatch(answer, told), told
    reply = served.ask("/completion", {"prompt": "?", "temperature": 0, "n_predict": 64, "json_schema": schema})
    assert re.fullmatch(answer, "".join(reply.body["content"].split())), reply.text


def test_a_schema_goes_with_answers_stops_and_probabilities(served: Served):
    body = asked(CHAT, {"type": "json_schema", "schema": WORD}) | {"n": 2, "logprobs": True, "top_logprobs": 1, "temperature": 1}
    choices = served.ask(CHAT, body).body["choices"]
    assert ["".join(choice["message"]["content"].split()) for choice in choices] == ['{"word":"ok"}'] * 2
    assert all("".join(one["token"] for one in choice["logprobs"]["content"]) == choice["message"]["content"] for choice in choices)
    assert "".join(said(CHAT, served.ask(CHAT, body | {"n": 1, "stop": ["ok"]})).split()) == '{"word":"'


def test_an_answer_in_a_form_is_guessed_from_the_text(served: Served):
    body = {"prompt": '{"word":"ok"} ' * 4, "temperature": 0, "n_predict": 64, "json_schema": WORD}
    reply = served.ask("/completion", body).body
    assert "".join(reply["content"].split()) == '{"word":"ok"}' and reply["timings"]["draft_n"] > 0


def test_a_grammar_in_lark_holds(served: Served):
    for path, body in (("/completion", {"prompt": "?", "n_predict": 8}), (CHAT, {"messages": TURN, "max_tokens": 8})):
        reply = served.ask(path, body | {"grammar": "%llguidance {}\nstart: /YE+S/", "temperature": 0})
        assert re.fullmatch("YE+S?", reply.body["content"] if path == "/completion" else said(CHAT, reply))
        assert "the field 'grammar' cannot hold for the answer: " in refusal(served.ask(path, body | {"grammar": "%llguidance {}\nstart: nothing"}))


def test_an_answer_goes_on_with_a_given_beginning(served: Served):
    turns = [*TURN, {"role": "assistant", "content": '{"word":'}]
    body = asked(CHAT, {"type": "json_schema", "schema": WORD}) | {"messages": turns}
    assert "".join(said(CHAT, served.ask(CHAT, body)).split()) == '"ok"}'
    turns[-1]["content"] = "Well"
    assert "the beginning of the answer" in refusal(served.ask(CHAT, body))


def test_without_the_package_a_schema_is_refused(tmp_path: Path):
    (tmp_path / "llguidance.py").write_text("raise ImportError\n")
    with serving(tmp_path, str(write_stub(tmp_path / "stub.gguf", "All is well. ")), PYTHONPATH=str(tmp_path)) as served:
        assert "pip install llguidance==" in refusal(served.ask(CHAT, asked(CHAT, {"type": "json_object"})))
        assert said(CHAT, served.ask(CHAT, asked(CHAT, {"type": "text"}))) == "All is well. "


def test_two_forms_are_refused(served: Served):
    body = asked(CHAT, {"type": "json_schema", "schema": WORD}) | {"grammar": 'root ::= "a"'}
    assert "cannot both hold for one answer" in refusal(served.ask(CHAT, body))
