#!/usr/bin/env bash
# llguidance 1.9.1 reads "pattern" as an expression of Rust, not of ECMA-262 as JSON Schema has it. Where Rust refuses, so does llguidance;
# classes of characters it reads otherwise without a word: [ inside a class begins another, && is an intersection, -- and ~~ are
# differences.
# Seen:  [[:alpha:]] takes 'a]': False, 'z': True; [a-z&&[^b]] '&]': False, 'c': True; [[a]] '[]': False, 'a': True; [+--] ',': False;
#        [a~~b] '~': False
source "$(dirname "$0")/common.sh" llguidance==1.9.1
seen - <<'PY'
import json

from llguidance import LLMatcher, LLTokenizer
from seen import check


def takes(pattern: str, text: str) -> bool:
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "pattern": pattern}))
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
    return matcher.try_consume_tokens(list(json.dumps(text).encode())) == len(text) + 2 and matcher.is_accepting()


# (pattern, a text that it has in ECMA-262, one that it has not)
for pattern, valid, invalid in (("^[[:alpha:]]$", "a]", "z"), ("^[a-z&&[^b]]$", "&]", "c"), ("^[[a]]$", "[]", "a")):
    check(f"{pattern} takes {valid!r}, {invalid!r}", (takes(pattern, valid), takes(pattern, invalid)), (False, True))
for pattern, valid in (("^[+--]$", ","), ("^[a~~b]$", "~")):
    check(f"{pattern} takes {valid!r}", takes(pattern, valid), False)
check(r"^[\[:alph]\]$ takes 'a]'", takes(r"^[\[:alph]\]$", "a]"), True)
PY
