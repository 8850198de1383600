"""The READMEs and the program agree: what one names, the other has."""

import ast
import contextlib
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.command_lines import calls, commands, parse

from edgekv.bench.row import OURS
from edgekv.common.enums import CacheType, KvMode, Split
from edgekv.config.setting_table import SETTINGS
from edgekv.policies import POLICIES
from edgekv.tiering.prefetch import PREFETCHERS

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = [path for path in sorted(ROOT.iterdir()) if path.is_dir() and path.name[0] != "." and path.name not in {"build", "dist", "node_modules"}]
READMES = [ROOT / "README.md", *(path for folder in FOLDERS for path in sorted(folder.rglob("README.md")))]
GUIDE = ROOT / "cli" / "GUIDE.md"
TEXT_OF = {path: path.read_text(encoding="utf-8") for path in [*READMES, GUIDE]}
DOCS = "\n".join(TEXT_OF.values())
MOST_LINES, MOST_WORDS = 130, 120
"""The most lines of README.md, whose details stand in the folder that they are about, and the most words of a paragraph."""
SOURCES = [path for folder in ("edgekv", "cli", "models", "patches", "native") for path in sorted((ROOT / folder).rglob("*"))]


COMMANDS = {path: command for path, command in commands() if path}


def options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden]


def unfenced(text: str) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def code() -> Iterator[tuple[Path, str, bool]]:
    """(file, text, whether it runs) for each line of fenced and indented blocks, which a reader may run, and for inline code, which only
    names things."""
    for path, text in TEXT_OF.items():
        for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.M | re.S):
            yield from ((path, line, True) for line in block.replace("\\\n", " ").splitlines())
        yield from ((path, line, True) for line in re.findall(r"^    (\S.*)", unfenced(text), re.M))
        yield from ((path, name, False) for name in re.findall(r"`([^`\n]+)`", unfenced(text)))


@functools.cache
def invocations() -> dict[str, bool]:
    """Each line that runs `edgekv`, and whether it stands in a block."""
    found: dict[str, bool] = {}
    for _, line, runs in code():
        if re.search(r"\bedgekv ", line) and not re.match(r"from |import ", line) and calls(line):
            found[line] = runs or found.get(line, False)
    return found


@functools.cache
def environment_variables() -> set[str]:
    """Every EDGEKV or EDGEKV_... that the program or its build reads."""
    found = {name for command in COMMANDS.values() for option in options(command) for name in _names(option.envvar)}
    found |= {"EDGEKV_MODEL", *(setting.variable for setting in SETTINGS)}
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


def test_every_readme_is_read():
    """The first README is short and leads to all others."""
    assert len(TEXT_OF[READMES[0]].splitlines()) <= MOST_LINES
    reached, left = {READMES[0]}, [READMES[0]]
    while left:
        path = left.pop()
        found = {(path.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+)", TEXT_OF[path])} & set(READMES)
        left += found - reached
        reached |= found
    assert reached == set(READMES)


def headings(text: str) -> set[str]:
    """The anchors of a file's headings, as links name them."""
    return {re.sub(r"[^\w -]", "", line.lower()).strip().replace(" ", "-") for line in re.findall(r"^#+ (.*)", unfenced(text), re.M)}


@pytest.mark.parametrize("path", [*TEXT_OF, ROOT / "LOG.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    """Every link but a picture's leads to a file, and every anchor to a heading. The report makes the pictures."""
    for link in re.findall(r"(?<!!)\[[^]]*\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{path.relative_to(ROOT)} links to {link}"
        assert not anchor or anchor in headings(file.read_text(encoding="utf-8")), f"{path.relative_to(ROOT)} links to {link}"


@pytest.mark.parametrize("path", sorted(TEXT_OF), ids=lambda path: str(path.relative_to(ROOT)))
def test_paragraphs_are_short(path):
    """An item of a list is a paragraph. Rows of tables are looked up, not read."""
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )", unfenced(TEXT_OF[path]))
    assert not [text for text in paragraphs if not text.lstrip().startswith("|") and len(text.split()) > MOST_WORDS]


FILE = r"(?:[\w.-]+/)*[\w-]+\.(?:py|md|cpp|h|cuh?|c|cmake|txt|toml|patch|json|svg|html|csv)|(?:\.?[\w-]+/)+(?:[\w.-]+)?"
"""A name in backticks that matches this is a file or folder of this repository."""
ELSEWHERE = {"build/", "card.json", "licenses/llama.cpp", "vendor/llama.cpp"}
"""Names that exist in a build, a wheel or llama.cpp's source, or that a reader gives."""


def test_named_files_exist():
    """A file is named by its path in the repository, by its path from the README's folder, or by the end of its path."""
    ours = [f"/{path.relative_to(ROOT).as_posix()}" for path in [*SOURCES, *(ROOT / "tests").rglob("*")] if path.suffix != ".pyc"]
    n_named = 0
    for path, text in TEXT_OF.items():
        for name in re.findall(r"`([^`\n]+)`", unfenced(text)):
            if not re.fullmatch(FILE, name) or name in ELSEWHERE:
                continue
            n_named += 1
            there = any(folder.joinpath(name).exists() for folder in (ROOT, path.parent))
            there = there or any(f"/{name}" in end if name.endswith("/") else end.endswith(f"/{name}") for end in ours)
            assert there, f"{path.relative_to(ROOT)} names {name}, and there is no such file"
    assert n_named > 40


@pytest.mark.parametrize("line", sorted(invocations()))
def test_named_command_lines_are_taken(line, monkeypatch):
    """The program parses each line without running it. A sentence that names a command may leave out what the command needs."""
    for name in environment_variables():
        monkeypatch.delenv(name, raising=False)
    may_lack = () if invocations()[line] else (click.MissingParameter,)
    for words in calls(line):
        with contextlib.suppress(*may_lack):
            parse(words)


FOREIGN_OPTIONS = {
    "--no-build-isolation": "pip", "--build": "cmake", "--target": "cmake", "--cpus": "docker", "--cpuset-cpus": "docker", "--memory": "docker",
    "--kv-unified": "llama.cpp", "--no-kv-unified": "llama.cpp", "--sleep-idle-seconds": "llama.cpp",
    "--embeddings": "llama.cpp", "--reranking": "llama.cpp", "--lora-init-without-apply": "llama.cpp",
    "--no-ui": "llama.cpp", "--dsa": "ik_llama.cpp", "--smartcache": "KoboldCpp",
    "--no-stream": "llm", "--logits_all": "llama_cpp.server", "--model_args": "lm_eval", "--tool": "compute-sanitizer",
}


def test_named_options_exist():
    """An option that a sentence names belongs to a command or to a program of this repository."""
    known = {flag for command in COMMANDS.values() for option in options(command) for flag in (*option.opts, *option.secondary_opts)}
    for path in [ROOT / "patches" / "apply.py", *(ROOT / "tests").glob("*/__main__.py")]:
        known |= set(re.findall(r"add_argument\(\s*\"(--[\w-]+)", path.read_text(encoding="utf-8")))
    named = {(path, name) for path, text, runs in code() if not runs for name in re.findall(r"(?<![\w-])--[a-z][\w-]*", text)}
    assert len(named) > 60
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path, name in named if name not in known | {"--help", "--help-all"} | set(FOREIGN_OPTIONS)]
    assert not wrong


def test_the_table_of_commands_is_whole():
    """The table of cli/README.md names every command and group once, and nothing else."""
    section = TEXT_OF[ROOT / "cli" / "README.md"].split("\n\n")[1]
    named = re.findall(r"`edgekv ([^`]+)`", "\n".join(line.split("|")[1] for line in section.splitlines()[2:]))
    assert sorted(named) == sorted(" ".join(path) for path in COMMANDS)


def test_named_variables_exist():
    named = set(re.findall(r"\bEDGEKV_[A-Z0-9_]+\b", DOCS))
    assert named <= environment_variables() | {"EDGEKV_SOAK_MINUTES", "EDGEKV_"}


def test_every_variable_is_named():
    """An option's help names its variable; a README names every other variable."""
    from_options = {name for command in COMMANDS.values() for option in options(command) for name in _names(option.envvar)}
    missing = {name for name in environment_variables() - from_options if not re.search(rf"\b{name}\b", DOCS)}
    assert not missing


@pytest.mark.parametrize("path", sorted(COMMANDS), ids=" ".join)
def test_every_command_is_documented(path):
    """A README names the command. Its help has a sentence, and each option has help and a variable that the help names."""
    command = COMMANDS[path]
    assert f"edgekv {' '.join(path)}" in DOCS
    assert command.help
    for option in options(command):
        assert option.help, f"{option.opts} has no help"
        if option.is_eager:  # --help, --version
            continue
        assert option.envvar and option.show_envvar, f"{option.opts} has no environment variable"
        assert all(name.startswith("EDGEKV_") for name in _names(option.envvar))


CHOICES = {*(member.value for kind in (KvMode, CacheType, Split) for member in kind), *POLICIES, *PREFETCHERS}


@pytest.mark.parametrize("value", sorted(CHOICES))
def test_every_choice_is_named(value):
    assert re.search(rf"`[^`\n]*\b{value}\b", DOCS), f"no README says what {value} is"


def test_every_field_of_bench_is_named():
    text = TEXT_OF[ROOT / "edgekv" / "bench" / "README.md"]
    assert not [field for field in OURS if f"`{field}`" not in text]
