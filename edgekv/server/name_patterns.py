"""Names of properties, by which of several patterns they match: an expression for each set of these, which llguidance lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from edgekv.server.schema_references import NotExact

_LAST = 0x10FFFF
_MOST_STATES, _MOST_PARTS, _MOST_LETTERS = 24, 32, 10_000
_NO_LINES = ((0, 9), (11, 12), (14, 0x2027), (0x202A, _LAST))
_SPACES = ((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000),
           (0xFEFF, 0xFEFF))
_SETS = {"d": ((48, 57),), "w": ((48, 57), (65, 90), (95, 95), (97, 122)), "s": _SPACES}
_SIGNS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "0": 0}

_Ranges = tuple[tuple[int, int], ...]
_Tree = tuple[str, Any]
"""(set, ranges), (all, trees one behind the other), (any, a set of trees), (star, tree)."""
_EMPTY: _Tree = ("all", ())
_NONE: _Tree = ("any", frozenset())


def split(patterns: Iterable[str]) -> dict[tuple[bool, ...], str]:
    """An anchored expression in Rust's syntax of the names that match the patterns of ECMA-262 where the key is true, and no others; keys whose names do
    not exist are left out. Raises NotExact for patterns that are not regular, and for many states."""
    start = tuple(_Reader(pattern).pattern() for pattern in patterns)
    bounds = sorted({0, _LAST + 1, *(edge for tree in start for low, high in _ranges(tree) for edge in (low, high + 1))})
    states: dict[tuple[_Tree, ...], int] = {start: 0}
    targets: list[list[int]] = []
    for state in (todo := [start]):
        row: list[int] = []
        for letter in bounds[:-1]:
            after = tuple(_behind(tree, letter) for tree in state)
            if after not in states:
                states[after] = len(states)
                todo.append(after)
            row.append(states[after])
        targets.append(row)
        if len(states) > _MOST_STATES:
            raise NotExact
    keys = [tuple(map(_ends, state)) for state in todo]
    kinds = _merged(keys, targets)
    edges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, row in enumerate(targets):
        for i, target in enumerate(row):
            edges.setdefault((kinds[number], kinds[target]), []).append((bounds[i], bounds[i + 1] - 1))
    spelled = {edge: _class(ranges) for edge, ranges in edges.items()}
    found = {key: _expression(spelled, kinds[0], {kinds[i] for i, one in enumerate(keys) if one == key}) for key in sorted(set(keys))}
    return {key: f"^(?:{expression})$" for key, expression in found.items()}


class _Reader:
    def __init__(self, pattern: str):
        self._left = re.findall(r"\\u\{[0-9a-fA-F]+\}|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\.|\{\d+(?:,\d*)?\}|\(\?:|.", pattern, re.DOTALL)

    def pattern(self) -> _Tree:
        options = [self._anchored()]
        while self._take("|"):
            options.append(self._anchored())
        if self._left:
            raise NotExact
        return _any(options)

    def _anchored(self) -> _Tree:
        anything: _Tree = ("star", ("set", ((0, _LAST),)))
        before = _EMPTY if self._take("^") else anything
        inner = self._row()
        return _all([before, inner, _EMPTY if self._take("$") else anything])

    def _take(self, *signs: str) -> str:
        return self._left.pop(0) if self._left and self._left[0] in signs else ""

    def _row(self) -> _Tree:
        trees = []
        while self._left and self._left[0] not in ("|", ")", "$"):
            trees.append(self._repeated(self._one()))
        return _all(trees)

    def _repeated(self, tree: _Tree) -> _Tree:
        sign = self._left[0] if self._left else ""
        if sign not in ("*", "+", "?") and not (len(sign) > 1 and sign[0] == "{"):
            return tree
        self._left.pop(0)
        least, _, most = {"*": "0,", "+": "1,", "?": "0,1"}.get(sign, sign.strip("{}")).partition(",")
        bounded = most or ("" if "," in sign or sign in "*+" else least)
        if int(least) > _MOST_STATES or int(bounded or 0) > _MOST_STATES or self._take("*", "+"):
            raise NotExact
        self._take("?")  # as few as can be: the same names
        rest = [_any([_EMPTY, tree])] * (int(bounded) - int(least)) if bounded else [("star", tree)]
        return _all([*[tree] * int(least), *rest])

    def _one(self) -> _Tree:
        sign = self._left.pop(0)
        if sign in ("(", "(?:"):
            options = [self._row()]
            while self._take("|"):
                options.append(self._row())
            if not self._take(")"):
                raise NotExact
            return _any(options)
        if sign == "[":
            return "set", self._class()
        if sign in ("^", "$", "*", "+", "?", ")"):
            raise NotExact
        return "set", _NO_LINES if sign == "." else self._letters(sign)

    def _class(self) -> _Ranges:
        is_other = bool(self._take("^"))
        found: list[tuple[int, int]] = []
        while not self._take("]"):
            if not self._left:
                raise NotExact
            low = self._letters(self._left.pop(0))
            if len(self._left) > 1 and self._left[0] == "-" and self._left[1] != "]":
                self._left.pop(0)
                high = self._letters(self._left.pop(0))
                if any(len(one) != 1 or one[0][0] != one[0][1] for one in (low, high)):
                    raise NotExact
                low = ((low[0][0], high[0][0]),)
            found += low
        return _others(tuple(found)) if is_other else tuple(found)

    @staticmethod
    def _letters(sign: str) -> _Ranges:
        if len(sign) == 1:
            return ((ord(sign), ord(sign)),)
        letter = sign[1]
        if letter in "ux" and len(sign) > 2:
            code = int(sign[2:].strip("{}"), 16)
        elif letter.lower() in _SETS:
            return _SETS[letter] if letter in _SETS else _others(_SETS[letter.lower()])
        elif sign[0] == "\\" and (not letter.isalnum() or letter in _SIGNS):
            code = _SIGNS.get(letter, ord(letter))
        else:
            raise NotExact
        return ((code, code),)


def _others(ranges: _Ranges) -> _Ranges:
    found, next_one = [], 0
    for low, high in sorted(ranges):
        if low > next_one:
            found.append((next_one, low - 1))
        next_one = max(next_one, high + 1)
    return tuple([*found, (next_one, _LAST)] if next_one <= _LAST else found)


def _all(trees: list[_Tree]) -> _Tree:
    flat = [one for tree in trees for one in (tree[1] if tree[0] == "all" else [tree])]
    if len(flat) > _MOST_PARTS:
        raise NotExact
    return _NONE if _NONE in flat else flat[0] if len(flat) == 1 else ("all", tuple(flat))


def _any(trees: Iterable[_Tree]) -> _Tree:
    flat = frozenset(one for tree in trees for one in (tree[1] if tree[0] == "any" else [tree]))
    return next(iter(flat)) if len(flat) == 1 else ("any", flat)


def _ranges(tree: _Tree) -> Iterable[tuple[int, int]]:
    kind, value = tree
    if kind == "set":
        return value
    return [one for inner in ([value] if kind == "star" else value) for one in _ranges(inner)]


def _ends(tree: _Tree) -> bool:
    kind, value = tree
    if kind in ("set", "star"):
        return kind == "star"
    return all(map(_ends, value)) if kind == "all" else any(map(_ends, value))


def _behind(tree: _Tree, letter: int) -> _Tree:
    """What may follow the letter (Brzozowski 1964, "Derivatives of regular expressions")."""
    kind, value = tree
    if kind == "set":
        return _EMPTY if any(low <= letter <= high for low, high in value) else _NONE
    if kind == "any":
        return _any(_behind(one, letter) for one in value)
    if kind == "star":
        return _all([_behind(value, letter), tree])
    ways = []
    for i, one in enumerate(value):
        ways.append(_all([_behind(one, letter), *value[i + 1:]]))
        if not _ends(one):
            break
    return _any(ways)


def _merged(keys: list[tuple[bool, ...]], targets: list[list[int]]) -> list[int]:
    """For each state the number of those that nothing tells from it."""
    kinds, n_before = [sorted(set(keys)).index(key) for key in keys], 0
    while len(set(kinds)) > n_before:
        n_before = len(set(kinds))
        rows = [(kinds[i], *(kinds[target] for target in row)) for i, row in enumerate(targets)]
        kinds = [sorted(set(rows)).index(row) for row in rows]
    return kinds


def _class(ranges: list[tuple[int, int]]) -> str:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        merged = [*merged[:-1], (merged[-1][0], high)] if merged and merged[-1][1] + 1 == low else [*merged, (low, high)]
    return "[" + "".join(rf"\x{{{low:X}}}" if low == high else rf"\x{{{low:X}}}-\x{{{high:X}}}" for low, high in merged) + "]"


def _expression(edges: dict[tuple[int, int], str], first: int, last: set[int]) -> str:
    """Of the ways from a state to others: states between are taken out one after the other."""
    edges = {**edges, (-1, first): ""} | {(one, -2): "" for one in last}
    between = {state for edge in edges for state in edge if state >= 0}
    while between:
        state = min(between, key=lambda one: sum(one in edge for edge in edges))
        between.remove(state)
        again = f"(?:{edges[state, state]})*" if (state, state) in edges else ""
        into = [(low, text) for (low, high), text in edges.items() if high == state != low]
        out = [(high, text) for (low, high), text in edges.items() if low == state != high]
        edges = {edge: text for edge, text in edges.items() if state not in edge}
        for low, before in into:
            for high, behind in out:
                way = f"(?:{before}){again}(?:{behind})" if again or "|" in before + behind else before + behind
                edges[low, high] = f"{edges[low, high]}|{way}" if (low, high) in edges else way
        if sum(map(len, edges.values())) > _MOST_LETTERS:
            raise NotExact
    return edges[-1, -2]
