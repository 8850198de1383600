"""The READMEs and the program agree: what one names, the other has."""

import ast
import contextlib
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.command_lines import calls, commands, parse

from edgekv.common.enums import CacheType, KvMode, SketchKind, Split
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


def test_the_readmes_have_examples():
    assert len(invocations()) >= 5


def test_every_readme_is_reached():
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


@pytest.mark.parametrize("path", sorted(set(TEXT_OF) - {ROOT / "cli" / "README.md"}), ids=lambda path: str(path.relative_to(ROOT)))
def test_paragraphs_are_short(path):
    """An item of a list is a paragraph. Rows of tables are looked up, not read; the list of all options is being written anew."""
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )", unfenced(TEXT_OF[path]))
    assert not [text for text in paragraphs if not text.lstrip().startswith("|") and len(text.split()) > MOST_WORDS]


FILE = r"(?:[\w.-]+/)*[\w-]+\.(?:py|md|cpp|h|cuh?|c|cmake|txt|toml|patch|json|svg|html)|(?:\.?[\w-]+/)+(?:[\w.-]+)?"
"""A name in backticks that matches this is a file or folder of this repository."""
ELSEWHERE = {"build/", "licenses/llama.cpp", "vendor/llama.cpp"}
"""Names that exist in a build, a wheel or llama.cpp's source."""
WRITTEN = {"results.json", "table.md", ".gpu/1", ".gpu/2", ".gpu/3"}
"""Names of files that a program writes."""


def test_named_files_exist():
    """A file is named by its path in the repository, by its path from the README's folder, or by the end of its path."""
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
}


def test_named_options_exist():
    """An option that a sentence names belongs to a command or to a program of this repository."""
    known = {flag for command in COMMANDS.values() for option in options(command) for flag in (*option.opts, *option.secondary_opts)}
    for path in [ROOT / "patches" / "apply.py", *(ROOT / "tests" / name / "__main__.py" for name in ("agents", "architectures", "planted", "upstream")),
                 *(ROOT / "tests" / "gpu_command").rglob("*.py")]:
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
    read_by_tests = {"EDGEKV_SOAK_MINUTES", "EDGEKV_LLAMA_BENCH", "EDGEKV_BENCH_MODELS", "EDGEKV_PLAN_SPEED"}
    assert named <= environment_variables() | read_by_tests | {"EDGEKV_"}


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
    import edgekv.common.errors as errors

    codes = [value for name, value in vars(errors).items() if name.startswith("EXIT_")]
    text = TEXT_OF[ROOT / "cli" / "README.md"]
    section = text[text.find("## Exit codes") :]
    assert all(re.search(rf"\b{code}\b", section) for code in codes)


# ---- the guide ------------------------------------------------------------------------------------------------------------------------

ANY = "\0"
"""A placeholder for the parts of a message that the program fills in."""


def messages() -> set[str]:
    """Every text of the sources that holds letters."""
    found = set()
    for path in SOURCES:
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found.add("".join(str(part.value) if isinstance(part, ast.Constant) else ANY for part in node.values))
                elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                    found.add("".join(_added(node)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(re.sub(r"\{\w*\}|%s|%\.0f", ANY, node.value))
        elif path.suffix in (".cpp", ".cmake", ".txt"):  # std::to_string(...) between two literals
            text = re.sub(r"\" \+ [^\";]+ \+\s*\"", ANY, path.read_text(encoding="utf-8"))
            found |= set(re.findall(r"\"([^\"\n]+)\"", re.sub(r"\$\{\w+\}", ANY, text)))
    return found


def _added(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.BinOp):
        yield from _added(node.left)
        yield from _added(node.right)
    elif isinstance(node, ast.JoinedStr):
        yield from (str(part.value) if isinstance(part, ast.Constant) else ANY for part in node.values)
    else:
        yield str(node.value) if isinstance(node, ast.Constant) else ANY


def quoted() -> list[str]:
    """The messages that the guide shows: code in the first column of its tables of faults."""
    section = TEXT_OF[GUIDE].split("## Something is wrong")[1]
    return [message for line in section.splitlines() if line.startswith("| ") for message in re.findall(r"`([^`]+)`", line.split(" | ")[0])]


FOREIGN_MESSAGES = {"No CMAKE_CXX_COMPILER could be found": "CMake", "exceed_context_size_error": "llama.cpp",
                    "Shared library with base name 'llama' not found": "llama-cpp-python"}
MESSAGES = messages()


@pytest.mark.parametrize("message", [message for message in quoted() if message not in FOREIGN_MESSAGES])
def test_the_guide_quotes_what_the_program_says(message):
    """Three dots in a message stand for any text."""
    pattern = re.compile(".*".join(re.escape(part) for part in message.removeprefix("warning: ").split("...")), re.S)
    assert re.search(r"\w+ \w+", message) and any(pattern.search(text) for text in MESSAGES), f"no source says {message!r}"


def test_the_guide_covers_what_people_meet():
    assert len(quoted()) >= 30
    assert "(GUIDE.md" in TEXT_OF[ROOT / "cli" / "README.md"]


# ---- comments -----------------------------------------------------------------------------------------------------------------------

NATIVE = {".cpp", ".h", ".cu", ".cuh"}
TEXTS = [path for path in [*SOURCES, *sorted((ROOT / "tests").rglob("*"))]
         if path.suffix in NATIVE | {".py", ".txt", ".cmake", ".patch", ".md"}]
FOREIGN = {"Python.h", "llama.cpp"}
"""Files of others that comments may name, besides files of llama.cpp that our sources include or our patches change."""


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each comment and docstring of a source file."""
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
    """A comment names a file by its name or by the end of its path, and the file exists. A name in capitals stands for any file."""
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
