"""Texts are cut for each pre-tokenizer of llama.cpp as std::regex cuts them, and those that are too long for it too.

`splits.cpp` is built twice with llama.cpp's `unicode.cpp`: with our matcher, and with a header that leaves all to std::regex.
`PYTHONPATH=tests python tests/native/test_splits.py` prints the table of native/README.md."""

import ast
import random
import re
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from support.native_build import needs, prepare, program

ROOT = Path(__file__).resolve().parents[2]
STOCK = """
template <typename... Any> bool llama_edgekv_split(const Any &...) { return false; }
template <typename Text> int llama_edgekv_codes(const Text &) { return 0; }
"""
LONG = 100_000  # characters: about 26,000 of one class end std::regex
CHARACTERS = [*"aZsStlLdD'0917-_/.,!?|(){}[]\\`$+<=>^~#@\"", *" \t\n\r\v\f\x01\x7f", *"éßǅƻµÀ中一龥の한ㄱةनि\u0301\u0903٣²Ⅷ。，、۔،…“€±😀\U0001f1e6\U00020000"]  # noqa: RUF001
CHARACTERS += ["\u00a0", "\u3000", "\u2028", "\u0085", "\u200d", "\ufffd", "\ue000", "\U0010ffff", "'s", "'LL", "'ve", " '", "IMGIMGABZ", "<sentinel:7>"]
RUNS = ["-", " ", "\n", "a", "Z", "7", "中", "\u0301", "€", "😀", " \n", "ab", "aZ", "a ", "a\u0301 "]


class Cut(NamedTuple):
    words: bytes
    ms: float


class Programs(NamedTuple):
    expressions: dict[str, list[str]]  # by the pre-tokenizers that have them
    ours: Path
    stock: Path
    known: list[str]  # texts by which llama.cpp knows tokens


def cut(program: Path, expressions: list[str], texts: list[str]) -> list[Cut]:
    given = "".join(f"{part}\0" for part in [*expressions, "", *texts]).encode()
    done = subprocess.run([program], input=given, capture_output=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
    lines = done.stdout.splitlines()
    return [Cut(words, float(ms)) for words, ms in zip(lines[::2], lines[1::2], strict=True)]


def pre_tokenizers(vocabulary: str) -> dict[str, list[str]]:
    found = {}
    for cases, listed in re.findall(r"((?:case LLAMA_VOCAB_PRE_TYPE_\w+:\s*|default:\s*)+)(?://[^\n]*\s*)*regex_exprs = \{(.*?)\};", vocabulary, re.S):
        names = ", ".join(re.findall(r"TYPE_(\w+)|(?=default)", cases)).lower() or "default"
        lines = [line.strip().rstrip(",") for line in listed.splitlines()]
        found[names] = [ast.literal_eval(re.split(r",\s*//", line)[0]) for line in lines if line.startswith('"')]
    return found


def make(folder: Path, upstream: Path) -> Programs:
    (folder / "llama.cpp").symlink_to(upstream)
    (folder / "llama-edgekv-splits.h").write_text(STOCK)
    sources = ["checkout/tests/native/splits.cpp", "llama.cpp/src/unicode.cpp", "llama.cpp/src/unicode-data.cpp"]
    glue = "checkout/native/llama"
    ours = program(folder, "ours", [*sources, f"{glue}/llama-edgekv-splits.cpp"], "-Illama.cpp/src", f"-I{glue}")
    stock = program(folder, "stock", sources, "-Illama.cpp/src", "-I.")
    vocabulary = (upstream / "src/llama-vocab.cpp").read_text()
    return Programs(pre_tokenizers(vocabulary), ours, stock, re.findall(r'\bt\.first == "([^"]+)"', vocabulary))


@pytest.fixture(scope="module")
def programs(upstream: Path, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return make(tmp_path_factory.mktemp("splits"), upstream)


@needs()
def test_each_pre_tokenizer_cuts_as_before(programs):
    draw = random.Random(1)
    texts = ["".join(draw.choice(CHARACTERS) * draw.choice([1, 1, 1, 2, 3, 5, 17, 40]) for _ in range(draw.randint(1, 60))) for _ in range(120)]
    texts += [line for path in ("README.md", "patches/apply.py") for line in (ROOT / path).read_text().split("\n\n") if line]
    texts += [letter * n for letter in RUNS for n in (1, 2, 3, 65, 513)]
    texts = [text for text in texts if text]
    assert len(programs.expressions) > 25
    for names, expressions in programs.expressions.items():
        ours, stock = (cut(program, expressions, texts) for program in (programs.ours, programs.stock))
        differ = [text for text, our, other in zip(texts, ours, stock, strict=True) if our.words != other.words]
        assert not differ, f"{names}: {min(differ, key=len)!r}"


@needs()
def test_runs_that_end_std_regex_are_cut(programs):
    texts = [letter * LONG + "?" for letter in ("-", " ", "a", "中", " \n")]
    for names, expressions in programs.expressions.items():
        for text, found in zip(texts, cut(programs.ours, expressions, texts), strict=True):
            assert sum(map(int, found.words.split())) == len(text.encode()), (names, text[:2])


@needs()
def test_tokens_that_are_known_by_their_text_have_brackets(programs):
    """llama-edgekv-headers.h passes over the others."""
    assert len(programs.known) > 60 and [text for text in programs.known if not {*text} & {*"<["}] == []


def main() -> None:
    """Prints medians of three, in turns; "-" where std::regex ends by a signal."""
    print("| pre-tokenizer | text | ours, ms | std::regex, ms |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        programs = make(Path(folder), prepare(Path(folder) / "source"))
        for name, expressions in programs.expressions.items():
            for what, text in (("10,000 dashes", "-" * 10_000), ("1 MB of dashes", "-" * (1 << 20)), ("1 MB of words", "Some words. " * ((1 << 20) // 12))):
                found: dict[Path, list[float]] = {programs.ours: [], programs.stock: []}
                given = "".join(f"{part}\0" for part in [*expressions, "", text]).encode()
                for _ in range(3):
                    for program, times in found.items():
                        if subprocess.run([program], input=given, capture_output=True).returncode == 0:
                            times.append(cut(program, expressions, [text])[0].ms)
                ours, stock = (f"{statistics.median(times):,.1f}" if times else "-" for times in found.values())
                print(f"| {name.split(',')[0]} | {what} | {ours} | {stock} |", flush=True)


if __name__ == "__main__":
    main()
