"""Sizes of the native sources: how long a file and how long a parameter list may be."""

import re
from collections.abc import Iterator
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2] / "native"
SOURCES = sorted(path for path in NATIVE.rglob("*") if path.suffix in (".c", ".cpp", ".h", ".cu", ".cuh"))
MOST_LINES, MOST_PARAMETERS = 400, 8


def code(text: str) -> str:
    """Without comments, and with empty strings; lines stay where they are."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), text, flags=re.S)
    return re.sub(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)\'', '""', text)


def arguments(text: str, first: int) -> list[str]:
    """What commas separate from `first`, which is behind an opening parenthesis, to the closing one."""
    out, depth, angles, begin = [], 1, 0, first
    for at in range(first, len(text)):
        mark = text[at]
        depth += (mark in "([{") - (mark in ")]}")
        if depth == 0:
            return [*out, text[begin:at]]
        if mark in "<>" and text[at - 1] != "-":  # of templates; a comparison stands in no parameter list
            angles = max(0, angles + (1 if mark == "<" else -1))
        if mark == "," and depth == 1 and angles == 0:
            out.append(text[begin:at])
            begin = at + 1
    return out


PARAMETER = re.compile(r"\s*(?:struct\s+|const\s+)*[A-Za-z_][\w:]*(?:<.*>)?(?:\s+const)?(?:[\s*&]+(?:const\s+)?\(?[*&]*\s*[A-Za-z_].*)", re.S)
UNNAMED = re.compile(r"\s*(?:int|bool|float|double|size_t|unsigned)\s*")


def parameter_lists(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, line and number of parameters of what is declared or defined: there each argument is a type, mostly with a name."""
    text = code(text)
    for found in re.finditer(r"([A-Za-z_~][\w:]*|\])\s*\(", text):
        given = arguments(text, found.end())
        if len(given) > 1 and all(PARAMETER.fullmatch(one) or UNNAMED.fullmatch(one) for one in given):
            yield found[1], text.count("\n", 0, found.start()) + 1, len(given)


def test_no_file_is_longer_than_a_reader_holds_at_once():
    lengths = {path.relative_to(NATIVE).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert not {name: n for name, n in lengths.items() if n > MOST_LINES}


def test_no_function_has_too_many_parameters():
    lists = [(path, found) for path in SOURCES for found in parameter_lists(path.read_text(encoding="utf-8"))]
    assert len(lists) > 500  # or the reader no longer sees them
    long = [f"{path.relative_to(NATIVE)}:{line} {name}: {n}" for path, (name, line, n) in lists if n > MOST_PARAMETERS]
    assert not long


def test_the_reader_sees_declarations_and_no_calls():
    text = """
        // int comment(int a, int b);
        static bool two(const std::map<int, float> & a, float (*b)[4]);
        auto lambda = [&](int a, char * const * b, size_t & c) { return call(a, b[0], "x, y", f(1, 2)); };
        void many(int a, int b = 1, const char * c = nullptr,
                  struct llama_context * d, uint64_t e, T (&f)[8], void (*g)(int, int), unsigned h, int i) const {
    """
    assert [(name, n) for name, _, n in parameter_lists(text)] == [("two", 2), ("]", 3), ("many", 9)]
