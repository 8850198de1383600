"""House rules that no linter checks: a file is short enough to be read whole, and no test imports another."""

import ast
import csv
import re
from pathlib import Path

import pytest
from planted.rooms import ROOMS, gone

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cli", "edgekv", "models", "native", "patches", "tests")
SUFFIXES = {".py", ".cpp", ".h", ".cu", ".c"}
MOST_LINES = 400

NO_LINES = {".md", ".csv", ".svg", ".json", ".png", ".pyc", ".so"}
"""Prose, tables, pictures, and what a run leaves."""

BUDGETS = {
    ".ci": 183,
    "cli": 3_962,
    "cli/chat": 2_665,
    "edgekv": 1_169,
    "edgekv/_native": 2_540,
    "edgekv/arrays": 873,
    "edgekv/bench": 2_703,
    "edgekv/common": 864,
    "edgekv/config": 1_005,
    "edgekv/lab": 4_039,
    "edgekv/measure": 1_304,
    "edgekv/pages": 185,
    "edgekv/planning": 2_594,
    "edgekv/policies": 1_177,
    "edgekv/prefix_cache": 4_057,
    "edgekv/proof": 986,
    "edgekv/runtime": 1_739,
    "edgekv/server": 5_052,
    "edgekv/tiering": 1_474,
    "findings": 1_585,
    "models": 2_206,
    "native": 592,
    "native/cuda": 7_201,
    "native/emulator": 2_786,
    "native/include": 1_337,
    "native/llama": 6_307,
    "native/server": 7_725,
    "native/src": 19_970,
    "native/tests": 7_704,
    "native/tests/ptx": 1_511,
    "patches": 3_684,
    "tests": 2_199,
    "tests/agents": 0,
    "tests/architectures": 920,
    "tests/arrays": 411,
    "tests/bench": 1_263,
    "tests/cli": 3_615,
    "tests/config": 278,
    "tests/lab": 1_757,
    "tests/models": 738,
    "tests/native": 1_841,
    "tests/planning": 1_539,
    "tests/planted": 794,
    "tests/policies": 704,
    "tests/prefix_cache": 2_789,
    "tests/proof": 244,
    "tests/runtime": 6_400,
    "tests/server": 8_597,
    "tests/support": 4_468,
    "tests/templates": 153,
    "tests/tiering": 1_181,
    "tests/upstream": 288,
}
"""Folder: its lines, but for those of folders in it that are named too. A folder that no name covers counts to the one around it."""


def sources() -> list[Path]:
    """Every source file that a person wrote. A build writes elsewhere."""
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]


def test_files_are_short_enough_to_be_read_whole():
    long = [path.relative_to(ROOT).as_posix() for path in sources() if len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES]
    assert not long, f"longer than {MOST_LINES} lines: split them along what they do"
    assert len(sources()) > 500, "the sources are found"


def test_no_test_imports_another():
    """Tests share code through tests/support."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            assert not any(part.startswith("test_") for name in names for part in name.split(".")), path


def test_one_object_has_the_state_of_the_servers_prefix_cache():
    """No other variable of a file, a function or a thread: they outlive their server, and tests that begin another."""
    variable = re.compile(r"^\s*(static|thread_local)\s(?!const)[^(]*[;={]|\bg_\w+|^std::atomic")
    found = [f"{path.name}: {line}" for path in sorted((ROOT / "native/server/prefix_cache").iterdir())
             for line in path.read_text(encoding="utf-8").splitlines() if variable.search(line)]
    assert found == ["cache.h:     static server_cache cache;"]


def test_what_finds_planted_faults_is_there():
    """A row of tests/planted/results.csv names the test that found a fault, and a room the tests that are asked first. Where one has gone, `python
    tests/planted --continue NAME` tells which finds the fault now."""
    with (ROOT / "tests" / "planted" / "results.csv").open() as table:
        finders = [row["test"].removeprefix("tests/") for row in csv.DictReader(table)]
    assert not gone([*finders, *(test for tests in ROOMS.values() for test in tests)])


@pytest.fixture(scope="module")
def lines() -> dict[str, int]:
    r"""What `git ls-files | grep -vE '\.(md|csv|svg|json|png)$' | xargs cat | wc -l` counts, by room."""
    counted = dict.fromkeys(BUDGETS, 0)
    for folder in {name.partition("/")[0] for name in BUDGETS}:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in NO_LINES and path.is_file() and not path.is_symlink():
                inside = path.parent.relative_to(ROOT)
                room = next(name for name in map(Path.as_posix, (inside, *inside.parents)) if name in BUDGETS)
                counted[room] += path.read_bytes().count(b"\n")
    return counted


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_to_its_budget(room, lines):
    """Whoever needs more lines says why in the commit that raises the budget; whoever needs fewer lowers it."""
    assert lines[room] <= BUDGETS[room], f"{room} has {lines[room]:,} lines, {BUDGETS[room]:,} are allowed: cut, or raise the budget and say why"
