"""What llguidance reads otherwise than JSON Schema means it, said in its words (llguidance 1.9.1: `findings/`)."""

import re
from collections.abc import Iterable
from decimal import Decimal
from math import isfinite
from typing import Any

from edgekv.common.errors import ConfigError

MAPS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
"""Words that hold schemas by name, and several."""
_ONE = {"additionalProperties", "items", "not", "if", "then", "else", "contains", "propertyNames"}
"""Words that hold a schema."""

_MOST_REMAINDERS = 10_000

_POINTER = "(/([^/~]|~[01])*)*"
_FORMATS = {"json-pointer": f"^{_POINTER}$", "relative-json-pointer": f"^(0|[1-9][0-9]*)(#|([+-][1-9][0-9]*)?{_POINTER})$"}
"""Formats that it lacks, as patterns (RFC 6901; draft-bhutton-relative-json-pointer-00)."""

_FEW = re.compile(r"\^(?:[A-Za-z0-9_-]+|\((?:[A-Za-z0-9_-]+\|)*[A-Za-z0-9_-]+\))\$")
_CLASSES = re.compile(r"(\\.)|\[(\^?)((?:\\.|[^\]\\])*)\]", re.DOTALL)
_ATOMS = re.compile(r"\\u[0-9a-fA-F]{4}|\\u\{[^}]*\}|\\x[0-9a-fA-F]{2}|\\[pP]\{[^}]*\}|\\.|.", re.DOTALL)
_SETS = re.compile(r"\\[dDwWsSpP]")


def as_meant(schema: Any) -> Any:
    """The schema with its patterns and further properties spelled so that llguidance enforces them. Raises ConfigError for what
    it would not, RecursionError."""
    if not isinstance(schema, dict):
        return schema
    if isinstance(name := schema.get("format"), str) and name in _FORMATS and "pattern" not in schema:
        schema = {word: given for word, given in schema.items() if word != "format"} | {"pattern": _FORMATS[name]}
    read = {word: _inside(word, given) for word, given in schema.items()}
    if _n_remainders(schema.get("multipleOf")) > _MOST_REMAINDERS:
        raise ConfigError(f"'multipleOf' would take too long where it has more than {_MOST_REMAINDERS} remainders; leave it out, and check the answer for it")
    _name_few(read)
    names, patterns, others = read.get("properties", {}), read.get("patternProperties", {}), read.get("additionalProperties", True)
    if not names or patterns or others is False or not isinstance(names, dict):
        return read
    # It takes a name with an escape for another property ("\u0061" beside "a"), but does not in names of a pattern.
    further = {"^": {}} if others in (True, {}) else {f"^{none_of(names)}$": others}
    return read | {"patternProperties": further, "additionalProperties": False}


def _n_remainders(divisor: Any) -> int:
    """llguidance has a state for each."""
    if not isinstance(divisor, int | float) or isinstance(divisor, bool) or not isfinite(divisor):
        return 0
    number = Decimal(repr(divisor))
    return abs(int(number.scaleb(max(0, -int(number.as_tuple().exponent)))))


def _name_few(schema: dict[str, Any]) -> None:
    """Patterns of a few names become properties: behind the last of these names it would let a comma follow, and then nothing."""
    names, patterns = schema.get("properties", {}), schema.get("patternProperties")
    if not isinstance(names, dict) or not isinstance(patterns, dict) or not all(map(_FEW.fullmatch, patterns)):
        return
    for pattern, given in schema.pop("patternProperties").items():
        for name in pattern.strip("^()$").split("|"):
            names = names | {name: {"allOf": [names[name], given]} if name in names else given}
    schema["properties"] = names


def _inside(word: str, given: Any) -> Any:
    if word == "pattern" and isinstance(given, str):
        return in_rust(given)
    if word in MAPS and isinstance(given, dict):
        return {in_rust(name) if word == "patternProperties" else name: as_meant(inner) for name, inner in given.items()}
    if word in (*LISTS, "items") and isinstance(given, list):
        return [as_meant(one) for one in given]
    return as_meant(given) if word in _ONE else given


def in_rust(pattern: str) -> str:
    """A pattern of ECMA-262, whose classes of characters know no classes, intersections and differences inside."""
    return _CLASSES.sub(_class, pattern)


def _class(found: re.Match[str]) -> str:
    if found[1] is not None:
        return found[0]
    if not found[3]:
        return r"[\s\S]" if found[2] else r"[^\s\S]"
    atoms, spelled = _ATOMS.findall(found[3]), ""
    while atoms:
        first, *rest = atoms
        if len(rest) < 2 or rest[0] != "-":
            spelled, atoms = spelled + _literal(first), rest
            continue
        between = r"\-" if _SETS.match(first) or _SETS.match(rest[1]) else "-"
        spelled, atoms = spelled + _literal(first) + between + _literal(rest[1]), rest[2:]
    return f"[{found[2]}{spelled}]"


def _literal(atom: str) -> str:
    return f"\\{atom}" if atom in "[&~^-" else atom


def none_of(words: Iterable[str]) -> str:
    """An expression of every text but these."""
    words = set(words)
    firsts = sorted({word[0] for word in words if word})
    other = f"[^{''.join(map(re.escape, firsts))}]" if firsts else "(?s:.)"
    ways = [re.escape(first) + none_of(word[1:] for word in words if word[:1] == first) for first in firsts]
    return f"(?:{'|'.join([*ways, f'{other}(?s:.)*'])}){'' if '' in words else '?'}"
