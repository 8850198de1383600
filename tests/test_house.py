"""House rules that no linter checks: a file is short enough to be read whole, and no test imports another."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cli", "edgekv", "models", "native", "patches", "tests")
SUFFIXES = {".py", ".cpp", ".h", ".cu", ".c"}
MOST_LINES = 400


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


def test_a_name_is_one_file():
    """A module's or native source's name is one file's. A command may have the name of what it runs, and a test the name of what it
    tests."""
    named = defaultdict(list)
    for kind in ("edgekv/**/*.py", "cli/*/*.py", "models/*.py", "native/*/**/*.cpp", "native/*/**/*.cu", "native/*/**/*.h"):
        for path in ROOT.glob(kind):
            if path.name != "__init__.py" and not path.is_relative_to(ROOT / "edgekv" / "lab" / "commands"):
                named[path.name].append(path.relative_to(ROOT).as_posix())
    assert not {name: paths for name, paths in named.items() if len(paths) > 1}
