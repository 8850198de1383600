"""Calls of tools in a chat template's format, as rules of a grammar in Lark: made of llama.cpp's parser of the answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from edgekv.common.errors import ConfigError

_SPACE = r"/[ \n\t]{1,20}/?"
_TEXT = r"/(.|\n)+/?"
_STRING = r"/([^{0}\\]|\\([{0}\\\/bfnrt ]|u[0-9a-fA-F]{{4}}))+/?"
_UNTOLD = "no mark of this model's template tells a call from such an answer; leave the tools or the schema out"
_Item = tuple[str, Any]
"""(text, str), (lark, an expression), (until, texts that end it) or (choice, lists of items)."""


def spelled(text: str, marks: Mapping[str, int], only_tokens: bool) -> str:
    """A text in Lark. Its `marks` are tokens where the vocabulary has them, and their text too if not `only_tokens`."""
    known = sorted((re.escape(mark) for mark in marks if mark in text), key=len, reverse=True)

    def piece(part: str) -> str:
        if part not in marks:
            return json.dumps(part)
        token = f"<[{marks[part]}]>"
        return token if only_tokens else f"({token} | {json.dumps(part)})"

    return " ".join(piece(part) for part in (re.split(f"({'|'.join(known)})", text) if known else [text]) if part)


class CallRules:
    """Rules of one answer: what its prompt ends with, thinking if there is any, and calls, or what may stand in their place."""

    def __init__(self, calls: dict[str, Any], marks: Mapping[str, int], schema_text: Callable[[str], str], instead: str):
        """`calls`: {"parser": llama.cpp's, "arguments": {a name in it: [the schema, whether it is strict]}}. `instead`: an expression of Lark;
        empty: a call comes. Raises ConfigError."""
        arena = json.loads(calls["parser"])
        self._parsers, self._names = arena["parsers"], arena["rules"]
        self._arguments, self._marks, self._schema_text, self._instead = calls["arguments"], marks, schema_text, instead
        self._rules: dict[str, str] = {}
        # a call that begins as JSON does could be the answer
        if instead and any(re.match(r"\s|{|\[\s*({|$)", self._first(parser)) for parser in arena["rules"].values() if self._parsers[parser].get("trigger")):
            raise ConfigError(_UNTOLD)
        self._rules["start"] = self._rendered(self._items(arena["root"]))

    def __str__(self) -> str:
        return "\n".join(f"{name}: {rule}" for name, rule in self._rules.items())

    def _first(self, parser: int) -> str:
        """The text that what a parser reads begins with; empty: it has none of its own."""
        given = self._parsers[parser]
        inner = given.get("children", [given["child"]] if "child" in given else [])
        return given.get("literal", "") or next((text for text in map(self._first, inner) if text), "")

    def _items(self, parser: int) -> list[_Item]:
        given = self._parsers[parser]
        kind = given["type"]
        if kind == "literal":
            return [("text", given["literal"])]
        if kind == "sequence":
            return [item for child in given["children"] for item in self._items(child)]
        if kind == "choice":
            options = [self._items(child) for child in given["children"] if self._parsers[child]["type"] not in ("and", "not")]
            return options[0] if len(options) == 1 else [("choice", options)]
        if kind == "repetition":
            inner = self._rendered(self._items(given["child"]))
            least, most = given["min_count"], given["max_count"]
            return [("lark", f"({inner}){{{least},{most if most >= 0 else ''}}}")] if inner else []
        if kind == "tag":
            return [] if given["tag"] == "content" else self._items(given["child"])  # no prose before a call
        if kind == "rule":
            return self._rule(parser, given)
        if kind == "ref":
            return self._items(self._names[given["name"]])
        if kind == "gbnf":
            return self._items(self._names.get(given["grammar"], given["child"]))
        if kind == "schema":
            return [("lark", self._named(f"schema_{parser}", f"%json {self._schema(given['name'])}"))]
        if kind in ("until", "ac"):
            return [(kind, given["delimiters"])]
        if kind == "atomic":
            return self._items(given["child"])
        if kind == "chars":
            least, most = given["min_count"], given["max_count"]
            return [("lark", f"/{given['pattern']}{{{max(least, 1)},{most if most >= 0 else ''}}}/{'' if least else '?'}")]
        leaves = {"space": _SPACE, "any": r"/(.|\n)/", "string": _STRING.format(given.get("delimiter"))}
        return [("lark", leaves[kind])] if kind in leaves else []

    def _rule(self, parser: int, given: dict[str, Any]) -> list[_Item]:
        if given["trigger"] and self._instead:
            instead, self._instead = self._instead, ""  # of the outermost calls alone
            return [("choice", [self._items(given["child"]), [("lark", instead)]])]
        name = f"rule_{parser}"
        if name in self._rules:
            return [("lark", name)]
        self._rules[name] = ""
        items = self._items(given["child"])
        if any(kind == "until" for kind, _ in items) or all(kind == "text" for kind, _ in items):  # ends with what follows the rule, or ends another
            del self._rules[name]
            return items
        return [("lark", self._named(name, self._rendered(items)))]

    def _schema(self, name: str) -> str:
        schema, is_strict = self._arguments.get(name, ({}, False))
        try:
            return self._schema_text(json.dumps(schema))
        except ConfigError as error:
            if is_strict:
                raise ConfigError(f"{name.removesuffix('-schema')} is strict, and {error}") from None
        return self._schema_text('{"type": "object"}')

    def _named(self, name: str, rule: str) -> str:
        if rule:
            self._rules[name] = rule
            return name
        self._rules.pop(name, None)
        return ""

    def _rendered(self, items: list[_Item]) -> str:
        joined: list[_Item] = []
        for kind, value in items:
            if kind == "text" and joined and joined[-1][0] == "text":
                joined[-1] = ("text", joined[-1][1] + value)
            elif value:
                joined.append((kind, value))
        parts: list[str] = []
        while joined:
            kind, value = joined.pop(0)
            if kind == "until":
                parts.append(self._until(value, joined))
            elif kind == "ac":
                parts.append(self._ends_with(value))
            elif kind == "choice":
                options = [self._rendered(option) for option in value]
                parts.append(f"({' | '.join(option for option in options if option)}){'' if all(options) else '?'}")
            else:
                parts.append(spelled(value, self._marks, True) if kind == "text" else value)
        return " ".join(part for part in parts if part)

    def _are_marks(self, ends: list[str]) -> bool:
        """Whether each of them begins with a token of its own, which no text has."""
        return all(any(end.startswith(mark) for mark in self._marks) for end in ends)

    def _until(self, ends: list[str], following: list[_Item]) -> str:
        """Text up to one of `ends`; where that is no token of its own, with the one that follows, which is then taken away."""
        if self._are_marks(ends):
            return _TEXT
        while following and following[0][0] == "lark" and (following[0][1] == _SPACE or re.fullmatch(r'\("(\\n|\\t| )+"\)\{0,1\}', following[0][1])):
            following.pop(0)
        for end in ends:
            if following and following[0][0] == "text" and following[0][1].strip().startswith(end.strip()):
                rest = following.pop(0)[1].lstrip()[len(end.strip()):]
                if rest:
                    following.insert(0, ("text", rest))
                return self._ends_with([end.strip()])
        raise ConfigError(_UNTOLD)

    def _ends_with(self, ends: list[str]) -> str:
        if self._are_marks(ends):
            return f"{_TEXT} ({' | '.join(spelled(end, self._marks, True) for end in ends)})"
        name = f"until_{len(self._rules)}"
        options = "|".join(re.escape(end).replace("/", r"\/").replace("\\\n", r"\n") for end in ends)
        self._rules[f"{name}[lazy]"] = rf"/(.|\n)*({options})/"
        return name
