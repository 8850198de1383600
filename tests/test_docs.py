"""The READMEs and the program agree: what one names, the other has."""

from __future__ import annotations

import ast
import io
import re
import shlex
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgekv.cli.main import cli
from edgekv.policies import POLICIES
from edgekv.prefetch import PREFETCHERS
from edgekv.vocab import CacheType, KvMode, SketchKind, Split

ROOT = Path(__file__).resolve().parent.parent
READMES = [ROOT / path for path in (
    "README.md", "cli/README.md", "edgekv/README.md", "edgekv/bench/README.md", "edgekv/policies/README.md", "edgekv/serving/README.md",
    "edgekv/store/README.md", "models/README.md",
    "native/README.md", "patches/README.md", "tests/README.md", "tests/gpu_command/results/README.md")]
TEXT_OF = {path: path.read_text(encoding="utf-8") for path in READMES}
DOCS = "\n".join(TEXT_OF.values())
MOST_LINES = 130
"""Of README.md: who wants more goes to the folder that it is about."""
SOURCES = [path for folder in ("edgekv", "cli", "models", "patches", "native") for path in sorted((ROOT / folder).rglob("*"))]


def commands(command: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with its words, e.g. ("bench", "kv"); groups too, except the root."""
    if path:
        yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


COMMANDS = dict(commands())


def options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def unfenced(text: str) -> str:
    """Without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def code_fragments() -> Iterator[str]:
    """Lines of fenced and of indented blocks, and inline code."""
    for text in TEXT_OF.values():
        for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.M | re.S):
            yield from block.replace("\\\n", " ").splitlines()
        yield from re.findall(r"^    (\S.*)", unfenced(text), re.M)
        yield from re.findall(r"`([^`\n]+)`", unfenced(text))


def invocations() -> list[str]:
    """What follows each `edgekv` in the code of the READMEs, up to the end of the shell command."""
    found = []
    for fragment in code_fragments():
        match = re.match(r"(?:[$>] )?(?:.*?[|;&] *)?(?:[A-Z_]+=\S* )*edgekv(?= |$)(.*)", fragment.strip())
        if match:
            found.append(re.split(r"[|;#]|&&|(?<!\S)[<>]", match[1])[0].strip())
    return found


def environment_variables() -> set[str]:
    """Every EDGEKV or EDGEKV_... that the program or its build reads."""
    found = {name for command in COMMANDS.values() for option in command.params for name in _names(option.envvar)}
    for path in SOURCES:
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                value = node.value if isinstance(node, ast.Constant) else None
                if isinstance(value, str) and re.fullmatch(r"EDGEKV(_[A-Z0-9]+)*", value):
                    found.add(value)
        elif path.suffix in (".cpp", ".cu", ".h", ".txt", ".cmake"):
            found |= set(re.findall(r'(?:getenv\("|ENV\{)(EDGEKV\w*)', path.read_text(encoding="utf-8")))
    return found


def _names(envvar: object) -> list[str]:
    return [envvar] if isinstance(envvar, str) else list(envvar or [])


def test_the_readmes_have_examples():
    assert len(invocations()) >= 5


def test_every_readme_is_read():
    """And the first is short, and leads to all others."""
    skipped = {"build", "dist", "node_modules"}
    there = {path for path in ROOT.rglob("README.md") if not any(part.startswith(".") or part in skipped for part in path.relative_to(ROOT).parts)}
    assert there == set(READMES)
    first = TEXT_OF[READMES[0]]
    assert len(first.splitlines()) <= MOST_LINES
    reached, left = {READMES[0]}, [READMES[0]]
    while left:
        path = left.pop()
        found = {(path.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+)", TEXT_OF[path])} & there
        left += found - reached
        reached |= found
    assert reached == there


def headings(text: str) -> set[str]:
    """As links name them."""
    return {re.sub(r"[^\w -]", "", line.lower()).strip().replace(" ", "-") for line in re.findall(r"^#+ (.*)", unfenced(text), re.M)}


@pytest.mark.parametrize("path", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    """Pictures apart, which the report makes."""
    for link in re.findall(r"(?<!!)\[[^]]*\]\(([^)]+)\)", TEXT_OF[path]):
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{path.relative_to(ROOT)} links to {link}"
        assert not anchor or anchor in headings(file.read_text(encoding="utf-8")), f"{path.relative_to(ROOT)} links to {link}"


FILE = r"(?:[\w.-]+/)*[\w-]+\.(?:py|md|cpp|h|cuh?|c|cmake|txt|toml|patch|json|svg|html)|(?:\.?[\w-]+/)+(?:[\w.-]+)?"
"""What stands in backticks and looks like a file or folder of this repository."""
ELSEWHERE = {"build/", "licenses/llama.cpp", "vendor/llama.cpp"}
"""What a build, a wheel or llama.cpp's source has."""
WRITTEN = {"results.json", "table.md", ".gpu/1", ".gpu/2", ".gpu/3"}
"""What a program writes."""


def test_named_files_exist():
    """By their path in the repository or from the README's folder, or by the end of it."""
    ours = [f"/{path.relative_to(ROOT).as_posix()}" for path in TEXTS]
    n_named = 0
    for path, text in TEXT_OF.items():
        for name in re.findall(r"`([^`\n]+)`", unfenced(text)):
            if not re.fullmatch(FILE, name) or name in ELSEWHERE | WRITTEN:
                continue
            n_named += 1
            there = any(folder.joinpath(name).exists() for folder in (ROOT, path.parent))
            there = there or any(f"/{name}" in end if name.endswith("/") else end.endswith(f"/{name}") for end in ours)
            assert there, f"{path.relative_to(ROOT)} names {name}, and there is no such file"
    assert n_named > 40


@pytest.mark.parametrize("line", sorted(set(invocations())))
def test_named_command_lines_exist(line):
    """The command of each example exists, and each of its options."""
    words = shlex.split(line)
    if "--" in words:  # what follows is llama.cpp's own
        words = words[: words.index("--")]
    command: click.Command = cli
    known = {"-h", "--help", "--version"}
    while words and isinstance(command, click.Group) and not words[0].startswith("-") and not words[0].isupper():  # COMMAND
        assert words[0] in command.list_commands(click.Context(command)), f"there is no command `edgekv {line}`"
        command = command.get_command(click.Context(command), words.pop(0))
    known |= {flag for option in options(command) for flag in (*option.opts, *option.secondary_opts)}
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            assert word.split("=")[0] in known, f"`edgekv {line}`: there is no {word}"


def test_named_variables_exist():
    named = set(re.findall(r"\bEDGEKV_[A-Z0-9_]+\b", DOCS))
    assert named <= environment_variables() | {"EDGEKV_", "EDGEKV_SOAK_MINUTES", "EDGEKV_LLAMA_BENCH"}  # tests read the last two


def test_every_variable_is_named():
    """Options say theirs in their help; all others stand in a README."""
    from_options = {name for command in COMMANDS.values() for option in options(command) for name in _names(option.envvar)}
    missing = {name for name in environment_variables() - from_options if not re.search(rf"\b{name}\b", DOCS)}
    assert not missing


@pytest.mark.parametrize("path", sorted(COMMANDS), ids=" ".join)
def test_every_command_is_documented(path):
    """In a README by name, in its help with a sentence; each option with help and an environment variable that it names."""
    command = COMMANDS[path]
    assert f"edgekv {' '.join(path)}" in DOCS
    assert command.help
    for option in options(command):
        assert option.help, f"{option.opts} has no help"
        if option.is_eager:  # --help, --version
            continue
        assert option.envvar and option.show_envvar, f"{option.opts} has no environment variable"
        assert all(name.startswith("EDGEKV_") for name in _names(option.envvar))


CHOICES = {*(member.value for kind in (KvMode, CacheType, SketchKind, Split) for member in kind), *POLICIES, *PREFETCHERS}


@pytest.mark.parametrize("value", sorted(CHOICES))
def test_every_choice_is_named(value):
    assert re.search(rf"`[^`\n]*\b{value}\b", DOCS), f"no README says what {value} is"


def test_chat_commands_are_named():
    from edgekv.cli.chat.commands import COMMANDS as SLASH

    named = set(re.findall(r"`(/[a-z]+)", DOCS))
    assert named - {"/edgekv", "/health", "/metrics", "/props", "/slots", "/tokenize"} <= set(SLASH)  # the endpoint's
    assert set(SLASH) - {"/help", "/quit"} <= named


def test_exit_codes_are_named():
    import edgekv.errors as errors

    codes = [value for name, value in vars(errors).items() if name.startswith("EXIT_")]
    text = TEXT_OF[ROOT / "cli" / "README.md"]
    section = text[text.find("## Exit codes") :]
    assert all(re.search(rf"\b{code}\b", section) for code in codes)


def test_the_log_says_what_became_of_each_experiment():
    found = re.findall(r"^## .*", (ROOT / "LOG.md").read_text(encoding="utf-8"), re.M)
    assert found and all(re.fullmatch(r"## \d{4}-\d\d-\d\d: .* \((kept|dropped|open)\)", heading) for heading in found)


# ---- comments -----------------------------------------------------------------------------------------------------------------------

NATIVE = {".cpp", ".h", ".cu", ".cuh"}
TEXTS = [path for path in [*SOURCES, *sorted((ROOT / "tests").rglob("*"))]
         if path.suffix in NATIVE | {".py", ".txt", ".cmake", ".patch", ".md"}]
FOREIGN = {"Python.h", "llama.cpp"}
"""Files of others that comments name, besides those of llama.cpp that our sources include or our patches change."""


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each comment of a source file; of Python's docstrings too."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or token.type == tokenize.STRING and token.string.startswith(('"""', 'r"""')):
                yield token.start[0], token.string
    elif path.suffix in NATIVE:
        for match in re.finditer(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', text, re.S):  # strings may hold what looks like a comment
            if match[0][0] == "/":
                yield text.count("\n", 0, match.start()) + 1, match[0]


def test_files_named_in_comments_exist():
    """A comment that names a file, by its name or the end of its path, names one that is there. Names in capitals stand for any file."""
    ours = [f"/{path.relative_to(ROOT).as_posix()}" for path in TEXTS]
    theirs = {name for path in TEXTS if path.suffix in NATIVE | {".patch"}
              for name in re.findall(r'#include [<"]\S*?([\w.-]+)[">]|^\+\+\+ b/\S*?([\w.-]+)$', path.read_text(encoding="utf-8"), re.M)}
    foreign = FOREIGN | {name for names in theirs for name in names}
    n_named = 0
    for path in TEXTS:
        for line, comment in comments(path):
            for name in re.findall(r"(?<![\w*>}.-])(?:\w[\w.-]*/)*\w[\w-]*\.(?:py|cpp|h|cuh?|cmake)\b(?![(.])", comment):
                n_named += 1
                known = name.rpartition("/")[2] in foreign or any(end.endswith(f"/{name}") for end in ours)
                assert known or Path(name).stem.isupper(), f"{path.relative_to(ROOT)}:{line} names {name}, and there is no such file"
    assert n_named > 100


def test_documents_that_are_not_here_are_not_cited():
    for path in TEXTS:
        for name in re.findall(r"\b([A-Z]{3,})(?:\.md)?,? [Ss]ection \d", path.read_text(encoding="utf-8")):
            assert (ROOT / f"{name}.md").exists(), f"{path.relative_to(ROOT)} cites {name}"
