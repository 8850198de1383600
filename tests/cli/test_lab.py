"""`edgekv lab` where its wheel is not installed, the names that its commands had, and what the two wheels hold."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgekv.cli.main import cli

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
BARE = [sys.executable, "-c", "import sys; sys.modules['edgekv.lab.commands'] = None; from edgekv.cli.main import main; main()"]


def answer(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command where there is no laboratory."""
    done = subprocess.run([*BARE, *arguments], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"], ["quality", "model.gguf"]], ids=" ".join)
def test_without_its_wheel_one_sentence_says_how(arguments):
    assert answer("lab", *arguments) == (
        2, "", "edgekv: the laboratory is not installed; in a clone of the repository: pip install ./edgekv/lab\n")


@pytest.mark.parametrize(("old", "new"), [
    *((name, f"lab {name}") for name in ("heads", "quality", "trace", "sim", "report")), ("bench ladder", "lab ladder")])
def test_an_old_name_is_answered_with_the_new_one(old, new):
    assert answer(*old.split(), "--help") == (2, "", f"edgekv: `edgekv {old}` is now `edgekv {new}`\n")


def test_help_shows_no_old_name():
    shown = CliRunner().invoke(cli, ["--help"]).output.partition("Run a model")[2]
    assert "  lab " in shown and not {"heads", "quality", "trace", "sim", "report"} & {line.split()[0] for line in shown.splitlines() if line.startswith("  ")}
    assert "ladder" not in CliRunner().invoke(cli, ["bench", "--help"]).output


def project(path: str) -> dict:
    return tomllib.loads((ROOT / path).read_text(encoding="utf-8"))


def test_the_laboratorys_wheel_is_of_the_products_version():
    product, laboratory = project("pyproject.toml"), project("edgekv/lab/pyproject.toml")
    assert laboratory["tool"]["hatch"]["build"]["targets"]["wheel"] == {"include": ["*.py", "*.html"], "sources": {"": "edgekv/lab"}}
    assert laboratory["project"]["version"] == product["project"]["version"]
