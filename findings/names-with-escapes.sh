#!/usr/bin/env bash
# llguidance 1.9.1: where a schema names properties and lets others follow, "\u0061" is taken for another name than "a", so that the schema
# of "a" does not hold for what a JSON parser makes of the text. (Names with plain letters may not come twice.) Names of patternProperties
# know no such escapes: {"^": {}} there, and additionalProperties false, takes the same answers but for these.
# Seen:  taken of a string twice, of a further name, of an escaped "a" with a number: [False, True, True]; with a pattern: [False, True,
#        False]
source "$(dirname "$0")/common.sh" llguidance==1.9.1
seen - <<'PY'
import json

from llguidance import LLMatcher, LLTokenizer
from seen import check


def takes(schema: dict, text: str) -> bool:
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()


A = {"type": "object", "properties": {"a": {"type": "string"}}}
texts = ['{"a":1}', '{"a":"x","a":1}', '{"a":"x","b":1}', r'{"a":"x","\u0061":1}']
check("what is parsed from the last text", json.loads(texts[-1]), {"a": 1})
check(f"taken of {texts}", [takes(A, text) for text in texts], [False, False, True, True])
check("with a pattern", [takes(A | {"patternProperties": {"^": {}}, "additionalProperties": False}, text) for text in texts], [False, False, True, False])
PY
