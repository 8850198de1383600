"""House rules: imports point down, native code has one door, and `--help` costs nothing."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# From the lowest to the highest: a module imports only from entries before its own. Modules of one entry may import each other, and the longest
# entry that a module's name begins with is its own.
ORDER = ["common", "config", "pages", "arrays", "policies", "tiering", "prefix_cache", "_native", "models", "planning", "runtime", "messages",
         "cache_types", "llama_keywords", "opening", "llama", "installing", "measure", "diagnosis", "proof", "server", "bench", "lab", "cli",
         "__main__", "lab.commands"]

PURE = ("policies", "tiering", "prefix_cache", "lab.traces.sim", "lab.results", "bench.compare", "bench.intervals", "bench.rows")
"""These modules see arrays and a read-only view: the same file runs live and in `sim`."""

TERMINAL = {"click", "rich", "prompt_toolkit"}


def modules() -> Iterator[tuple[str, Path]]:
    """(name, file) of every Python module of the wheel; the name has no leading `edgekv.`."""
    for folder, prefix in (("edgekv", ""), ("cli", "cli."), ("models", "models.")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = prefix + ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if name.strip("."):
                yield name.strip("."), path


MODULES = dict(modules())


@cache
def imported(path: Path) -> frozenset[str]:
    """Full names of a file's imports, also inside functions and under TYPE_CHECKING. `from a import b` gives a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer; write edgekv.…"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def layer(name: str) -> str:
    """The entry of `ORDER` that a module belongs to; "": none."""
    return max((entry for entry in ORDER if f"{name}.".startswith(f"{entry}.")), key=len, default="")


def edgekv_imports(path: Path) -> set[str]:
    """The layers of a file's imports."""
    return {layer(name.removeprefix("edgekv.")) for name in imported(path) if name.startswith("edgekv.")} - {""}


def test_every_module_has_a_layer():
    unknown = sorted(name for name in MODULES if not layer(name))
    assert not unknown, f"say in tests/test_imports.py which layer {unknown} belong to"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_down(name):
    upward = {other for other in edgekv_imports(MODULES[name]) if ORDER.index(other) > ORDER.index(layer(name))}
    if name == "cli.lab":
        upward -= {"lab.commands"}
    assert not upward, f"edgekv.{name} is below {sorted(upward)} and must not import them"


def test_decisions_are_pure():
    """Policies, prefetch and planner never touch native code or a live context."""
    for name, path in MODULES.items():
        if f"{name}.".startswith(tuple(f"{pure}." for pure in PURE)):
            assert not edgekv_imports(path) & {"_native", "runtime", "llama"}, name


def test_the_product_knows_no_laboratory():
    """It comes in a wheel of its own; cli/lab.py alone says what to do where that is not installed."""
    knowing = {name for name, path in MODULES.items() if not name.startswith("lab") and {"lab", "lab.commands"} & edgekv_imports(path)}
    assert knowing == {"cli.lab"}


def test_native_code_has_one_door():
    for name, path in MODULES.items():
        roots = {full.split(".")[0] for full in imported(path)}
        compiled = {full for full in imported(path) if full.startswith(("edgekv._native._core", "edgekv._native._server"))}
        if not name.startswith("_native"):
            assert "cffi" not in roots and not compiled, f"edgekv.{name}: only edgekv._native touches ffi"
        # ctypes only where llama_cpp's own low-level functions are called; ctypes.util looks libraries up and calls nothing.
        uses_ctypes = {full for full in imported(path) if full.split(".")[0] == "ctypes" and not full.startswith("ctypes.util")}
        if layer(name) not in ("_native", "messages", "llama", "measure", "bench", "lab"):
            assert not uses_ctypes, f"edgekv.{name}: ctypes is for _native, messages, llama, measure, bench and lab"
            # installing puts our class there, and attachments a default of its class
            known = "llama_cpp" not in roots or name in ("cache_types", "opening", "installing", "runtime.attachments")
            assert known, f"edgekv.{name}: llama_cpp is for messages, llama, opening, cache_types, installing, attachments, measure, bench and lab"


def test_only_the_command_line_knows_a_terminal():
    for name, path in MODULES.items():
        if layer(name) not in ("cli", "lab.commands"):
            assert not {full.split(".")[0] for full in imported(path)} & TERMINAL, f"edgekv.{name} is below cli"


def test_the_package_itself_imports_nothing():
    """`import edgekv` is on the path of `--help`, so it loads nothing heavy."""
    tree = ast.parse((ROOT / "edgekv" / "__init__.py").read_text())
    top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert {getattr(node, "module", None) or node.names[0].name for node in top} <= {"__future__", "importlib.metadata", "os"}


HELP = f"""
import json, sys
sys.path.append({str(ROOT / "tests")!r})
import support.laboratory
from edgekv.cli.main import cli
try:
    cli.main(sys.argv[1:], prog_name="edgekv")
finally:
    print("\\n" + json.dumps(list(sys.modules)))
"""
NO_OPTIONS = {"edgekv.config", "edgekv.cli.common.shared_options", "importlib.metadata"}
NO_FILE = {"edgekv.cli.config", "edgekv.cli.common.config_file", "tomllib"}


@pytest.mark.parametrize(("line", "needless"), [
    ("--version", NO_OPTIONS), ("--help", NO_OPTIONS),
    ("chat --help", NO_FILE | {"edgekv.cli.serve"}), ("serve --help", NO_FILE | {"edgekv.cli.chat"}), ("models --help", NO_FILE)])
def test_a_command_imports_what_it_says(line, needless, tmp_path):
    """Most people have no file of options, which chat and serve would take theirs from."""
    result = _python(tmp_path, "-c", HELP, *line.split())
    assert result.returncode == 0 and not needless & set(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.parametrize("command", [[], ["chat"], ["serve"], ["doctor"], ["policies"], ["bench"], ["bench", "serve"], ["lab"],
                                     ["lab", "ladder"], ["lab", "trace"], ["lab", "trace", "record"], ["lab", "trace", "info"],
                                     ["lab", "sim"], ["lab", "quality"], ["lab", "report"], ["cache"], ["cache", "list"], ["cache", "rm"], ["models"],
                                     ["models", "list"], ["models", "synth"], ["completion"]], ids=" ".join)
def test_help_imports_nothing_heavy(command, tmp_path):
    result = _python(tmp_path, "-c", HELP, *command, "--help")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Usage: edgekv")
    loaded = json.loads(result.stdout.splitlines()[-1])
    assert not {"numpy", "llama_cpp", "gguf", "cffi", "httpx2", "prompt_toolkit"} & set(loaded)


TAB = """
import json, os, sys
from edgekv.cli.main import main
os.environ |= {"_EDGEKV_COMPLETE": "bash_complete", "COMP_WORDS": sys.argv[1], "COMP_CWORD": ""}
try:
    main()
finally:
    print("\\n" + json.dumps(list(sys.modules)))
"""


@pytest.mark.parametrize("line", ["edgekv ", "edgekv bench ", "edgekv chat --", "edgekv chat --kv ", "edgekv chat mod", "edgekv serve --cache-dir "])
def test_a_tab_imports_nothing_heavy(line, tmp_path):
    result = _python(tmp_path, "-c", TAB, line)
    assert result.returncode == 0, result.stderr
    *offered, _, loaded = result.stdout.splitlines()
    assert offered and not {"numpy", "llama_cpp", "gguf", "cffi", "httpx2", "prompt_toolkit", "rich"} & set(json.loads(loaded))


def test_a_tab_on_commands_imports_none(tmp_path):
    """main.py holds the helps of all commands."""
    result = _python(tmp_path, "-c", TAB, "edgekv ")
    assert not {f"edgekv.cli.{name}" for name in ("chat", "serve", "bench", "models")} & set(json.loads(result.stdout.splitlines()[-1]))


def _python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # From an empty folder: with -c, the current one comes first on the path, and this repository's edgekv/ is not the package.
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
