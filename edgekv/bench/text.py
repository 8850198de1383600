"""The texts that benchmarks read: prose, code and dialogue from Python's standard library, without a download, or a file.

They are the same for the same Python version. `content` is plain text; a Text also knows how a given model reads it.
"""

import ast
import doctest
import pydoc_data.topics
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from edgekv.common.errors import ConfigError, ModelError
from edgekv.llama import Llama

from llama_cpp.llama_chat_format import Jinja2ChatFormatter

BYTES_PER_TOKEN = 16
"""Bytes given to the tokenizer per wanted token: far above any language's mean, and a bound on the work."""

SOURCES = (
    "collections/__init__", "statistics", "heapq", "argparse", "difflib", "fractions", "textwrap", "random", "configparser",
    "csv", "dataclasses", "datetime", "_pydecimal", "functools", "http/client", "inspect", "json/decoder", "logging/__init__",
    "mailbox", "optparse", "pathlib", "pdb", "pickle", "shutil", "subprocess", "tarfile", "threading", "turtle", "typing",
    "zipfile", "email/message", "asyncio/base_events", "unittest/mock", "xml/dom/minidom", "ast", "enum", "ipaddress", "locale",
)
"""Modules of the standard library that make code and dialogue; modules that a Python version lacks are skipped."""


def chat_template(llama: Llama, add_generation_prompt: bool) -> Jinja2ChatFormatter | None:
    """A formatter that renders messages for the model; None for a model without a template."""
    template = llama.metadata.get("tokenizer.chat_template")
    if template is None:
        return None
    bos, eos = (llama.detokenize([token], special=True).decode() for token in (llama.token_bos(), llama.token_eos()))
    return Jinja2ChatFormatter(template=template, bos_token=bos, eos_token=eos, add_generation_prompt=add_generation_prompt)


def check_beginnings(llama: Llama, tokens: Sequence[int], what: str, written: str | None = None) -> None:
    """Raise ModelError if `tokens` hold the beginning-of-text token too often. It may stand once, at the very beginning; in the tokens
    of `written`, a part of a chat, as often as there."""
    bos = llama.token_bos()
    places = [i for i, token in enumerate(tokens) if token == bos]
    if places in ([], [0]) and written is None or not places:
        return
    n_written = 0 if written is None else written.count(llama.detokenize([bos], special=True).decode())
    if len(places) > n_written or places[:2] == [0, 1]:
        wanted = "once, at the beginning" if written is None else f"{n_written} times, as the text of the chat has it"
        raise ModelError(f"{what} has the beginning-of-text token {len(places)} times, at {', '.join(map(str, places[:4]))}, and should "
                         f"have it {wanted}: a model takes what follows a second one for another text; "
                         "use a model file with another tokenizer or chat template")


class Text(Struct, frozen=True):
    name: str
    content: str

    def tokens(self, llama: Llama, n: int) -> list[int]:
        """The first `n` tokens as this model reads them; fewer if the text is shorter. Raises ModelError (`check_beginnings`)."""
        tokens = llama.tokenize(self.content[: BYTES_PER_TOKEN * n].encode())[:n]
        check_beginnings(llama, tokens, self.name)
        return tokens


class Dialogue(Text, frozen=True):
    """Many short turns, read in the model's chat template; a model without one reads `content`."""

    turns: tuple[tuple[str, str], ...]
    """(question, answer)"""

    def tokens(self, llama: Llama, n: int) -> list[int]:
        chat = chat_template(llama, add_generation_prompt=False)
        if chat is None:
            return super().tokens(llama, n)
        n_turns = n // 64 + 1
        while True:  # a turn's number of tokens is only known afterwards
            messages: list[Any] = [{"role": role, "content": said} for turn in self.turns[:n_turns]
                        for role, said in zip(("user", "assistant"), turn)]
            read = chat(messages=messages)
            tokens = llama.tokenize(read.prompt.encode(), add_bos=not read.added_special, special=True)
            if len(tokens) >= n or n_turns >= len(self.turns):
                check_beginnings(llama, tokens, self.name, read.prompt)
                return tokens[:n]
            n_turns *= 2


@cache
def _prose() -> Text:
    topics = pydoc_data.topics.topics
    paragraphs = [*_paragraphs(topics[name] for name in sorted(topics)), *_paragraphs(text for _, text in _docstrings())]
    return Text("prose", "\n\n".join(dict.fromkeys(paragraphs)))


@cache
def _code() -> Text:
    return Text("code", "\n\n".join(source for _, source in _sources()))


@cache
def _dialogue() -> Text:
    turns = tuple(_turns())
    return Dialogue("dialogue", "\n\n".join(f"User: {asked}\n\nAssistant: {answered}" for asked, answered in turns), turns)


TEXTS: dict[str, Callable[[], Text]] = {"prose": _prose, "code": _code, "dialogue": _dialogue}
"""Paragraphs of the Python language reference and of the library's documentation; modules of the library; a chat about it: what a function does, and
what an example of its documentation gives."""


def standard_text() -> Text:
    return _prose()


def find_text(name: str) -> Text:
    """The text called `name` (TEXTS), otherwise the file at that path. Raises ConfigError."""
    if name in TEXTS:
        return TEXTS[name]()
    if not Path(name).exists():
        raise ConfigError(f"there is no text or file {name!r}; name a file, or one of: {', '.join(TEXTS)}")
    return read_text(Path(name))


def read_text(path: Path) -> Text:
    """Read a file as a text. Raises ConfigError if it cannot be read or is not UTF-8."""
    try:
        return Text(path.name, path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; give a text file to read from") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


# ---- what they are made from --------------------------------------------------------------------------------------------------


def _sources() -> Iterator[tuple[str, str]]:
    """(dotted name, source) of each module in SOURCES."""
    folder = Path(sysconfig.get_path("stdlib"))
    for name in SOURCES:
        path = folder / f"{name}.py"
        if path.exists():
            yield name.removesuffix("/__init__").replace("/", ".").lstrip("_"), path.read_text(encoding="utf-8")


def _docstrings() -> Iterator[tuple[str, str]]:
    """(dotted name, docstring) of each public class, function and method of the sources."""
    for module, source in _sources():
        todo: list[tuple[str, ast.AST]] = [(module, ast.parse(source))]
        while todo:
            name, node = todo.pop(0)
            if text := ast.get_docstring(node):  # type: ignore[arg-type]  # todo holds only nodes that may have one
                yield name, text
            inner = node.body if isinstance(node, (ast.Module, ast.ClassDef)) else []
            todo[:0] = [(f"{name}.{child.name}", child) for child in inner
                        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and child.name[0] != "_"]


def _paragraphs(texts: Iterator[str]) -> Iterator[str]:
    """The paragraphs that are sentences, without indented text (code), grammars, headings and list items."""
    for text in texts:
        for paragraph in text.split("\n\n"):
            lines = paragraph.strip("\n").splitlines()
            plain = " ".join(lines).strip()
            if lines and not any(line[:1].isspace() for line in lines) and plain[0].isupper() and plain[-1] in ".:!?" \
                    and "::=" not in plain and ">>>" not in plain and len(plain.split()) >= 12:
                yield "\n".join(line.rstrip() for line in lines)


def _explanation(docstring: str) -> str:
    """The paragraphs up to the first example, 120 words at most."""
    words: list[str] = []
    for paragraph in docstring.split("\n\n"):
        if ">>>" in paragraph or words and len(words) + len(paragraph.split()) > 120:
            break
        words += paragraph.split()
    return " ".join(words)


def _turns() -> Iterator[tuple[str, str]]:
    """Of a chat about the names of the library that have a docstring."""
    for i, (name, docstring) in enumerate(_docstrings()):
        explanation = _explanation(docstring)
        if len(explanation.split()) < 6:
            continue
        asked = (f"What does {name} do?", f"Tell me about {name}, please.", f"And {name}? What is it good for?",
                 f"I have seen {name} in a program. What is that?")
        yield asked[i % len(asked)], explanation
        try:
            examples = doctest.DocTestParser().get_examples(docstring)
        except ValueError:  # the example cannot be run
            continue
        for example in examples[:4]:
            gives = f"It gives {example.want.strip()}" if example.want.strip() else "That prints nothing."
            yield f"What does this give?\n\n{example.source.strip()}", gives
