"""Calls of tools in a chat template's format, as rules of a grammar in Lark: made of llama.cpp's parser of the answers."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from edgekv.common.errors import ConfigError

_SPACE = r"/[ \n\t]{1,20}/?"
_TEXT = r"/(.|\n)+/?"
_STRING = r"/([^{0}\\]|\\([{0}\\\/bfnrt ]|u[0-9a-fA-F]{{4}}))+/?"
_Item = tuple[str, Any]
"""(text, str), (lark, an expression), (until, texts that end it), (optional, items) or (choice, lists of items)."""


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
    """Rules of one answer: what its prompt ends with, thinking if there is any, and calls, or what may stand in their place; or of calls alone."""

    def __init__(self, calls: dict[str, Any], marks: Mapping[str, int], schema_text: Callable[[str], str], instead: str):
        """`calls`: {"parser": llama.cpp's, "arguments": {a name in it: [the schema, whether it is strict]}, "lazy": whether the rules are those of
        calls alone}. `instead`: an expression of Lark; empty: a call comes. Raises ConfigError."""
        arena = json.loads(calls["parser"])
        self._parsers, self._names = arena["parsers"], arena["rules"]
        self._arguments, self._marks, self._schema_text, self._instead = calls["arguments"], marks, schema_text, instead
        self._rules: dict[str, str] = {}
        triggers = [parser for parser in arena["rules"].values() if self._parsers[parser].get("trigger")]
        # a call that begins as JSON does could be the answer
        if instead.startswith("answer") and any(re.match(r"\s|{|\[\s*({|$)", self._first(parser)) for parser in triggers):
            raise ConfigError("no mark of this model's template tells a call from such an answer; leave the tools or the schema out")
        items = [("choice", [self._items(parser) for parser in triggers])] if calls.get("lazy") else self._items(arena["root"])
        self._rules["start"] = self._rendered(items)

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
            least, most = given["min_count"], given["max_count"]
            if (least, most) == (0, 1):
                return [("optional", self._items(given["child"]))]
            inner = self._rendered(self._items(given["child"]))
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
        if self._instead and (given["trigger"] or self._encloses_calls(given["child"])):
            instead, self._instead = self._instead, ""  # of the outermost calls alone
            calls, self._instead = self._items(given["child"]), instead
            return [("choice", [calls, [("lark", instead)]])]
        name = f"rule_{parser}"
        if name in self._rules:
            return [("lark", name)]
        self._rules[name] = ""
        items = self._items(given["child"])
        if any(kind == "until" for kind, _ in items) or all(kind == "text" for kind, _ in items):  # ends with what follows the rule, or ends another
            del self._rules[name]
            return items
        return [("lark", self._named(name, self._rendered(items)))]

    def _encloses_calls(self, parser: int) -> bool:
        """Whether all that there is beside the calls are marks around them, which may be missing."""
        children = [self._parsers[child] for child in self._parsers[parser].get("children", ())]
        marks = [self._parsers[child["child"]] for child in children if child["type"] == "repetition" and child["min_count"] == 0]
        return any(child.get("trigger") for child in children) and len(marks) == len(children) - 1 and all("literal" in mark for mark in marks)

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
                options = self._options(value)
                parts.append(f"({' | '.join(option for option in options if option)}){'' if all(options) else '?'}")
            elif kind == "optional":
                parts.append(f"({inner}){{0,1}}" if (inner := self._rendered(value)) else "")
            else:
                parts.append(spelled(value, self._marks, True) if kind == "text" else value)
        return " ".join(part for part in parts if part)

    def _options(self, choice: list[list[_Item]]) -> list[str]:
        """Those that can be told; raises ConfigError where there is none."""
        options, failures = [], []
        for items in choice:
            try:
                options.append(self._rendered(items))
            except ConfigError as error:
                failures.append(error)
        if not options:
            raise failures[0]
        return options

    def _are_marks(self, ends: list[str]) -> bool:
        """Whether each of them begins with a token of its own, which no text has."""
        return all(any(end.startswith(mark) for mark in self._marks) for end in ends)

    def _until(self, ends: list[str], following: list[_Item]) -> str:
        """Text up to one of `ends`; where that is no token of its own, with the one that follows, which is then taken away."""
        if self._are_marks(ends):
            return _TEXT
        while following and not _needed(following[0]):
            following.pop(0)
        behind = following[:1]
        if behind and behind[0][0] == "optional":
            behind = behind[0][1]
        text = behind[0][1] if [kind for kind, _ in behind] == ["text"] else ""
        for end in ends:
            if text and text.strip().startswith(end.strip()):
                following.pop(0)
                rest = text.lstrip()[len(end.strip()):]
                if rest:
                    following.insert(0, ("text", rest))
                return self._ends_with([end.strip()])
        raise ConfigError("no mark of this model's template tells where a text in a call ends; leave the tools or the schema out, or 'strict'")

    def _ends_with(self, ends: list[str]) -> str:
        if self._are_marks(ends):
            return f"{_TEXT} ({' | '.join(spelled(end, self._marks, True) for end in ends)})"
        name = f"until_{len(self._rules)}"
        options = "|".join(re.escape(end).replace("/", r"\/").replace("\\\n", r"\n") for end in ends)
        self._rules[f"{name}[lazy]"] = rf"/(.|\n)*({options})/"
        return name


def _needed(item: _Item) -> bool:
    """Whether a text may not go without it; white space may."""
    kind, value = item
    return any(map(_needed, value)) if kind == "optional" else value != _SPACE if kind == "lark" else kind != "text" or bool(value.strip())
