"""References of a schema as paths from its root: names of schemas (`$id`, `$anchor`, `$dynamicAnchor`) resolved, and gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

MAPS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
INNER = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then", "unevaluatedItems",
         "unevaluatedProperties")
"""Words that hold schemas by name, several, and one."""

_NAMES = ("$id", "$anchor", "$dynamicAnchor", "$dynamicRef")


class NotExact(Exception):
    """No schema of the words there are says the same."""


def parts(schema: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The schemas within one, each with its path."""
    for word, value in schema.items():
        if word in MAPS and isinstance(value, dict):
            yield from (((word, name), one) for name, one in value.items())
        elif word in LISTS or (word == "items" and isinstance(value, list)):
            yield from (((word, str(i)), one) for i, one in enumerate(value if isinstance(value, list) else []))
        elif word in INNER:
            yield (word,), value


class _Names:
    def __init__(self, root: dict[str, Any]):
        self.base = self.inside(root, "")
        self.places: dict[str, tuple[str, ...]] = {self.base: ()}
        """Of addresses, and of anchors behind them."""
        self.dynamic: set[str] = set()
        self._enter(root, "", ())

    def _enter(self, schema: Any, base: str, path: tuple[str, ...]) -> None:
        if not isinstance(schema, dict):
            return
        base = self.inside(schema, base)
        if "$id" in schema:
            self.places[base] = path
        for word in ("$anchor", "$dynamicAnchor"):
            if word in schema:
                self.places[f"{base}#{schema[word]}"] = path
        if "$dynamicAnchor" in schema:
            self.dynamic.add(f"{base}#{schema['$dynamicAnchor']}")
        for within, one in parts(schema):
            self._enter(one, base, path + within)

    @staticmethod
    def inside(schema: dict[str, Any], base: str) -> str:
        return urldefrag(urljoin(base, schema["$id"])).url if isinstance(schema.get("$id"), str) else base

    def path_of(self, reference: str, base: str, is_dynamic: bool) -> str:
        """Raises NotExact."""
        address, name = urldefrag(urljoin(base, reference))
        anchor = f"{address}#{name}"
        if is_dynamic and anchor in self.dynamic:  # the outermost of that name; the root is always around
            if f"{self.base}#{name}" in self.dynamic:
                anchor = f"{self.base}#{name}"
            elif sum(one.endswith(f"#{name}") for one in self.dynamic) > 1:
                raise NotExact
        is_path = not name or name.startswith("/")
        if (address if is_path else anchor) not in self.places:
            raise NotExact
        path = self.places[address if is_path else anchor]
        steps = [*path, *(part.replace("~1", "/").replace("~0", "~") for part in unquote(name).split("/")[1:] if is_path)]
        return "#" + "".join(f"/{quote(step.replace('~', '~0').replace('/', '~1'), safe='$~')}" for step in steps)


def with_paths(root: Any) -> Any:
    """The schema with references that are paths from its root alone. Raises NotExact, RecursionError."""
    text = repr(root)
    if not isinstance(root, dict) or not any(name in text for name in _NAMES):
        return root
    names = _Names(root)

    def written(schema: Any, base: str) -> Any:
        if not isinstance(schema, dict):
            return schema
        base = names.inside(schema, base)
        made = {word: value for word, value in schema.items() if word not in _NAMES}
        if "$ref" in schema:
            made["$ref"] = names.path_of(schema["$ref"], base, False)
        if "$dynamicRef" in schema:
            to = {"$ref": names.path_of(schema["$dynamicRef"], base, True)}
            made = {**made, "allOf": [*made.get("allOf", []), to]} if "$ref" in made else made | to
        for word, value in made.items():
            if word in MAPS and isinstance(value, dict):
                made[word] = {name: written(one, base) for name, one in value.items()}
            elif (word in LISTS or word == "items") and isinstance(value, list):
                made[word] = [written(one, base) for one in value]
            elif word in INNER:
                made[word] = written(value, base)
        return made

    return written(root, "")
