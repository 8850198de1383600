#!/usr/bin/env bash
# llama-cpp-python 0.3.36: LlamaGrammar.from_json_schema() drops words of a schema without a word: bounds of numbers, and minLength beside a
# pattern. minLength
# alone is kept.
# Seen:  integer from 10 to 12: ("-"? integral-part) space; pattern and minLength: "\"" [a-z]+ "\"" space; minLength 2, maxLength 3: char
#        char (char)?
source "$(dirname "$0")/common.sh" llama-cpp-python==0.3.36
seen - <<'PY'
import json

from llama_cpp.llama_grammar import json_schema_to_gbnf
from seen import check

for schema, expected in (({"type": "integer", "minimum": 10, "maximum": 12}, '("-"? integral-part) space'),
                         ({"type": "string", "pattern": "^[a-z]+$", "minLength": 5}, r'"\"" [a-z]+ "\"" space'),
                         ({"type": "string", "minLength": 2, "maxLength": 3}, r'"\"" char char (char)? "\"" space')):
    root = next(line for line in json_schema_to_gbnf(json.dumps(schema)).splitlines() if line.startswith("root "))
    check(json.dumps(schema), root.removeprefix("root ::= "), expected)
PY
