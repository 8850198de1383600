"""JSON Schema's words that llguidance lacks, written with those that it has. Exactly, or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from edgekv.server.form_schema import LISTS, MAPS, none_of

Schema = Any
"""An object of JSON Schema, or a boolean."""

_INNER = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then", "unevaluatedItems",
          "unevaluatedProperties")
"""Words that hold one schema, or in old drafts a list of them."""
_TYPES = ("null", "boolean", "number", "string", "array", "object")
_KINDS = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
_LIMITS = {  # word: the type that it is for, and what holds where it does not, in integers one off
    "minLength": ("string", "maxLength", -1), "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1), "maxItems": ("array", "minItems", 1),
    "minimum": ("number", "exclusiveMaximum", 0), "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0), "exclusiveMaximum": ("number", "minimum", 0)}
_COUNTS = {f"{bound}{kind}" for bound in ("min", "max") for kind in ("Items", "Length", "Properties")}
_SILENT = {"$anchor", "$comment", "$defs", "$schema", "contentEncoding", "contentMediaType", "contentSchema", "default", "definitions", "deprecated",
           "description", "examples", "readOnly", "title", "writeOnly"}
"""Words that forbid nothing."""
_MOST_SCHEMAS = 20_000
_WRITTEN_WORDS = {"contains", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "propertyNames", "then", "unevaluatedItems",
                  "unevaluatedProperties"}
_DEPENDING = {"$dynamicRef", "anyOf", "dependentSchemas", "if", "oneOf"}
"""Words by which it depends on the value what is evaluated."""


class NotExact(Exception):
    """No schema of the words there are says the same."""


class Rewriting:
    """Of one schema."""

    def __init__(self, root: Schema):
        self._root = root
        self._n_left = _MOST_SCHEMAS
        self._has_names = any(_named_within(value) for value in root.values()) if isinstance(root, dict) else False
        """Whether schemas within may have names, which references are then relative to."""
        self._within: set[str] = set()
        """References that are being negated or compared."""

    def rewritten(self) -> Schema:
        """The whole, in which each reference finds what it found. A word that cannot be written otherwise stays, for llguidance to refuse by name."""
        return self._written(self._root)

    def _written(self, schema: Schema) -> Schema:
        if not isinstance(schema, dict):
            return schema
        self._count()
        schema = self._without_lost_references(schema)
        if schema is False:
            return False
        inner: dict[str, Any] = {word: int(value) if word in _COUNTS and isinstance(value, float) and value.is_integer() else value
                                 for word, value in schema.items()}
        more: list[Schema] = []
        for words, write in self._WRITTEN.items():
            if any(word in schema for word in words):
                try:
                    more += [self._written(one) for one in write(self, schema)]
                except NotExact:
                    continue
                for word in words:
                    inner.pop(word, None)
        for word, value in inner.items():
            if word in MAPS and isinstance(value, dict):
                inner[word] = {name: self._written(one) for name, one in value.items()}
            elif word in LISTS and isinstance(value, list):
                inner[word] = [self._written(one) for one in value]
            elif word in _INNER:
                inner[word] = [self._written(one) for one in value] if isinstance(value, list) else self._written(value)
        return inner | {"allOf": [*inner.get("allOf", []), *more]} if more else inner

    def _without_lost_references(self, schema: dict[str, Any]) -> Schema:
        """With the target in the place of a reference to a boolean, which llguidance does not take, or into a word that is written otherwise."""
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        others = {word: value for word, value in schema.items() if word != "$ref"}
        try:
            target = self._target({"$ref": reference})
        except NotExact:
            return schema
        if isinstance(target, bool):
            return others if target else False
        if _WRITTEN_WORDS & set(reference.split("/")) and reference not in self._within:
            return {**others, "allOf": [*others.get("allOf", []), self._through({"$ref": reference}, lambda found: found)]}
        return schema

    def _conditional(self, schema: dict[str, Any]) -> list[Schema]:
        condition, then, otherwise = (schema.get(word, True) for word in ("if", "then", "else"))
        if "if" not in schema or then is otherwise is True:
            return []
        if then is True:
            return [{"anyOf": [condition, otherwise]}]
        fails = self.negated(condition)
        return [{"anyOf": [then, fails] if otherwise is True else [{"allOf": [condition, then]}, {"allOf": [fails, otherwise]}]}]

    def _dependent(self, schema: dict[str, Any]) -> list[Schema]:
        found = []
        for word in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, needs in schema.get(word, {}).items():
                needed = {"required": needs} if isinstance(needs, list) else needs
                found.append({"anyOf": [{"properties": {name: False}}, needed]})
        return found

    def _named(self, schema: dict[str, Any]) -> list[Schema]:
        names = self._resolved(schema["propertyNames"])
        if names in (True, {}):
            return []
        words = {word: value for word, value in names.items() if word not in _SILENT} if isinstance(names, dict) else {}
        if words.pop("type", "string") != "string":
            raise NotExact
        if names is False:
            return [{"additionalProperties": False}]
        if set(words) in ({"enum"}, {"const"}):
            known = words.get("enum", [words.get("const")])
            return [{"properties": {name: True for name in known if isinstance(name, str)}, "additionalProperties": False}]
        if set(words) == {"pattern"}:
            return [{"patternProperties": {words["pattern"]: True}, "additionalProperties": False}]
        if words and set(words) <= {"minLength", "maxLength"}:
            return [{"patternProperties": {f"^(.|\\n){{{words.get('minLength', 0)},{words.get('maxLength', '')}}}$": True},
                     "additionalProperties": False}]
        raise NotExact

    def _unevaluated(self, schema: dict[str, Any]) -> list[Schema]:
        """Where the same names are evaluated in any value: by the words beside it, those of `allOf` and of a reference."""
        names: dict[str, Schema] = {}
        patterns: dict[str, Schema] = {}
        beside = [{word: value for word, value in schema.items() if word != "unevaluatedProperties"}]
        for one in beside:
            self._count()
            if isinstance(one, bool):
                continue
            if one.keys() & _DEPENDING:
                raise NotExact
            if one.keys() & {"additionalProperties", "unevaluatedProperties"}:
                return []
            names |= dict.fromkeys(one.get("properties", ()), True)
            patterns |= dict.fromkeys(one.get("patternProperties", ()), True)
            beside += one.get("allOf", [])
            if "$ref" in one:
                beside.append(self._target({"$ref": one["$ref"]}))
        return [{"properties": names, "patternProperties": patterns, "additionalProperties": schema["unevaluatedProperties"]}]

    def _unique(self, schema: dict[str, Any]) -> list[Schema]:
        if schema["uniqueItems"] is not False:
            raise NotExact
        return []

    def _one_of(self, schema: dict[str, Any]) -> list[Schema]:
        options = schema["oneOf"]
        others = {word: value for word, value in schema.items() if word != "oneOf"}
        found = []
        for i, option in enumerate(options):
            apart = [self.negated(other) for k, other in enumerate(options) if k != i and not self._disjoint(option, other, others)]
            found.append({"allOf": [option, *apart]} if apart else option)
        return [{"anyOf": found}]

    _WRITTEN: Mapping[tuple[str, ...], Callable[[Rewriting, dict[str, Any]], list[Schema]]] = {
        ("not",): lambda self, schema: [self.negated(schema["not"])],
        ("if", "then", "else"): _conditional,
        ("dependencies",): _dependent, ("dependentRequired",): _dependent, ("dependentSchemas",): _dependent,
        ("propertyNames",): _named,
        ("uniqueItems",): _unique,
        ("oneOf",): _one_of,
        ("unevaluatedProperties",): _unevaluated,
    }

    def negated(self, schema: Schema) -> Schema:
        """What holds where the schema does not. Raises NotExact."""
        self._count()
        if isinstance(schema, bool):
            return not schema
        if "$ref" in schema:
            return self._through(schema, self.negated)
        options: list[Schema] = []
        for word, value in schema.items():
            options += self._negated_word(word, value, schema)
        return _any(options)

    def _negated_word(self, word: str, value: Any, schema: dict[str, Any]) -> Iterable[Schema]:
        if word in _LIMITS and not isinstance(value, bool) and not isinstance(schema.get(f"exclusive{word.capitalize()}"), bool):
            kind, opposite, step = _LIMITS[word]
            return [{"type": kind, opposite: value + step}] if value + step >= 0 or not step else []
        if word == "type":
            return [{"type": kinds}] if (kinds := _other_types(value)) else []
        if word in ("const", "enum"):
            return _other_values([value] if word == "const" else value)
        if word == "prefixItems":
            return [{"type": "array", "minItems": i + 1, "prefixItems": [*[True] * i, other]} for i, one in enumerate(value)
                    if (other := self.negated(one)) is not False]
        if word == "required":
            return [{"type": "object", "properties": {name: False}} for name in value]
        if word == "properties":
            return [{"type": "object", "required": [name], "properties": {name: other}} for name, one in value.items()
                    if (other := self.negated(one)) is not False]
        if word == "not":
            return [value]
        if word == "allOf":
            return [self.negated(one) for one in value]
        if word == "anyOf":
            return [{"allOf": [self.negated(one) for one in value]}]
        if word in _SILENT or (word in ("additionalProperties", "items") and value in (True, {})):
            return []
        raise NotExact

    def _disjoint(self, one: Schema, other: Schema, both: dict[str, Any], n_levels: int = 4) -> bool:
        """Whether no value fits two schemas, as far as it is plain to see. `both` has words that hold beside each of them."""
        self._count()
        try:
            one, other = ({} if half is True else half for half in (self._resolved(one), self._resolved(other)))
        except NotExact:
            return False
        if one is False or other is False:
            return True
        kinds = _types({**both, **one}) & _types({**both, **other})
        values = [half.get("enum", [half["const"]] if "const" in half else None) for half in (one, other)]
        texts = [{value for value in half or () if isinstance(value, str)} for half in values]
        if not kinds or (kinds == {"string"} and None not in values and not texts[0] & texts[1]):
            return True
        needed = {name for half in (both, one, other) for name in half.get("required", ())} if n_levels and kinds == {"object"} else ()
        return any(self._disjoint(_property(one, name), _property(other, name), {}, n_levels - 1) for name in needed)

    def _resolved(self, schema: Schema) -> Schema:
        for _ in range(9):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            schema = self._target(schema)
        raise NotExact

    def _through(self, schema: dict[str, Any], work: Callable[[Schema], Schema]) -> Schema:
        reference = schema["$ref"]
        if reference in self._within:
            raise NotExact
        self._within.add(reference)
        try:
            return work(self._target(schema))
        finally:
            self._within.remove(reference)

    def _target(self, schema: dict[str, Any]) -> Schema:
        """Of a reference without others beside it, by a path within the root."""
        if self._has_names or any(word not in _SILENT for word in schema if word != "$ref") or not re.fullmatch(r"#(/.*)?", schema["$ref"]):
            raise NotExact
        found = self._root
        for part in unquote(schema["$ref"]).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(name) if isinstance(found, list) else name]
            except (KeyError, IndexError, ValueError, TypeError):
                raise NotExact from None
        return found

    def _count(self) -> None:
        self._n_left -= 1
        if self._n_left < 0:
            raise NotExact


def _named_within(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, dict) and any(isinstance(value.get(word), str) for word in ("$id", "id"))) or any(map(_named_within, inner))


def _any(options: list[Schema]) -> Schema:
    options = [option for option in options if option is not False]
    return options[0] if len(options) == 1 else {"anyOf": options} if options else False


def _types(schema: dict[str, Any]) -> set[str]:
    given = schema.get("type", list(_TYPES))
    kinds = {"number" if kind == "integer" else kind for kind in ([given] if isinstance(given, str) else given)}
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return kinds if values is None else kinds & {_KINDS[type(value)] for value in values}


def _property(schema: dict[str, Any], name: str) -> Schema:
    if name in schema.get("properties", {}):
        return schema["properties"][name]
    return True if schema.get("patternProperties") else schema.get("additionalProperties", True)


def _other_types(given: str | list[str]) -> list[str]:
    kinds = {given} if isinstance(given, str) else set(given)
    if "integer" in kinds and "number" not in kinds:
        raise NotExact  # numbers that are no integers have no word
    return [kind for kind in _TYPES if kind not in kinds]


def _other_values(values: list[Any]) -> Iterator[Schema]:
    if any(isinstance(value, list | dict) for value in values):
        raise NotExact
    texts = [value for value in values if isinstance(value, str)]
    numbers = sorted({value for value in values if isinstance(value, int | float) and not isinstance(value, bool)})
    yield {"type": ["array", "object", *(["null"] if None not in values else []), *([] if numbers else ["number"]), *([] if texts else ["string"])]}
    if flags := [flag for flag in (True, False) if not any(flag is value for value in values)]:
        yield {"enum": flags}
    if texts:
        yield {"type": "string", "pattern": f"^{none_of(texts)}$"}
    for low, high in zip([None, *numbers], [*numbers, None]) if numbers else ():
        yield {"type": "number", **({} if low is None else {"exclusiveMinimum": low}), **({} if high is None else {"exclusiveMaximum": high})}
