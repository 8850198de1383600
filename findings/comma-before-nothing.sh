#!/usr/bin/env bash
# llguidance 1.9.1: with patternProperties of one name ("^a$") and no further properties, a comma may follow that property, and after the
# comma's space nothing may: the answer can neither go on nor end. The same name among "properties" lets no comma follow.
# Seen:  behind {"a":1 may follow: patternProperties ",}", properties "}"; behind {"a":1, with patternProperties: nothing, and no end
source "$(dirname "$0")/common.sh" llguidance==1.9.1
seen - <<'PY'
import json

from llguidance import LLMatcher, LLTokenizer
from seen import check


def follows(word: str, name: str, text: str) -> tuple[str, bool]:
    """What may follow a text, but for space; whether it may end there."""
    schema = {"type": "object", word: {name: {"const": 1}}, "required": ["a"], "additionalProperties": False}
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)
    if matcher.try_consume_tokens(list(text.encode())) != len(text):
        return "not taken", False
    bits = matcher.compute_bitmask()
    return "".join(chr(byte) for byte in range(33, 127) if bits[byte // 8] >> byte % 8 & 1), matcher.is_accepting()


check('behind {"a":1 with patternProperties', follows("patternProperties", "^a$", '{"a":1'), (",}", False))
check('behind {"a":1 with properties', follows("properties", "a", '{"a":1'), ("}", False))
check('behind {"a":1, with patternProperties', follows("patternProperties", "^a$", '{"a":1,'), ("", False))
PY
