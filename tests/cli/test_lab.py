"""`edgekv lab` where its wheel is not installed, and what the two wheels hold."""

import subprocess
import sys
from pathlib import Path

import pytest

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


def project(path: str) -> dict:
    return tomllib.loads((ROOT / path).read_text(encoding="utf-8"))


def test_the_laboratorys_wheel_is_of_the_products_version():
    product, laboratory = project("pyproject.toml"), project("edgekv/lab/pyproject.toml")
    assert laboratory["tool"]["hatch"]["build"]["targets"]["wheel"] == {"include": ["*.py", "*.html"], "sources": {"": "edgekv/lab"}}
    assert laboratory["project"]["version"] == product["project"]["version"]
