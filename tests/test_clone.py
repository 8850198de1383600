"""Python starts in the folder of a clone, as everybody does after `pip install .`, and finds the package rather than the folder
`edgekv`."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import edgekv

import llama_cpp

ROOT = Path(__file__).resolve().parents[1]
COMPILED = Path(edgekv.lib_folder).resolve().parent
"""The folder of this installation that holds libraries and compiled modules."""


def copy(source: Path, to: Path) -> None:
    shutil.copytree(source, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.so", "lib", "*.svg"))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The folder of packages as `pip install .` fills it, also where this installation is an editable one."""
    site = tmp_path_factory.mktemp("site")
    for source, name in (("edgekv", "edgekv"), ("cli", "edgekv/cli"), ("models", "edgekv/models")):
        copy(ROOT / source, site / name)
    shutil.rmtree(site / "edgekv" / "lab")  # a wheel of its own
    (site / "edgekv" / "lib").symlink_to(COMPILED / "lib")
    for module in (COMPILED / "_native").glob("*.so"):
        (site / "edgekv" / "_native" / module.name).symlink_to(module)
    info = site / f"edgekv-{version('edgekv')}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: edgekv\nVersion: {version('edgekv')}\n")
    return site


@pytest.fixture(scope="module")
def clone(tmp_path_factory, synthetic) -> Path:
    """A source tree, with a model for the README's example."""
    clone = tmp_path_factory.mktemp("clone")
    for name in ("edgekv", "cli", "models"):
        copy(ROOT / name, clone / name)
    shutil.copy(ROOT / "pyproject.toml", clone)
    (clone / "model.gguf").symlink_to(synthetic("llama"))
    return clone


def run(code: str, folder: Path, *places: Path) -> str:
    """The output of a Python in `folder` that looks for packages in `places` first. It runs without site, so that it sees no editable
    installation."""
    packages = Path(llama_cpp.__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EDGEKV", "LLAMA_CPP"))}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (*places, packages)))
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr[-3000:]
    return done.stdout


def test_the_installed_package_is_found_and_used(clone, site):
    names = [f"edgekv{name}" for name in ("", ".cli", ".models", ".models.geometry", "._native", "._native.core", "._native._core", ".runtime.runtime")]
    for first in ("import edgekv, llama_cpp", "import edgekv._native.core, llama_cpp", "from edgekv.runtime.runtime import Runtime; import edgekv"):
        found = run(f"{first}\nimport sys, importlib\nfor name in {names}: print(importlib.import_module(name).__file__)\n"
                    "print(sys.modules['edgekv'] is edgekv, edgekv.__version__)", clone, site).splitlines()
        assert all(Path(path).is_relative_to(site) for path in found[:-1]) and found[-1] == f"True {version('edgekv')}"
    found = run("import edgekv, llama_cpp; print(edgekv.lib_folder, llama_cpp.llama_cpp._lib._name, edgekv is __import__('sys').modules['edgekv'])",
                clone, site)
    assert found.split()[0] == str(site / "edgekv" / "lib") and found.endswith("True\n")
    assert Path(found.split()[1]).resolve().is_relative_to(COMPILED)


def test_the_readmes_example_works_there(clone, site):
    (example,) = re.findall(r"## From Python\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert "max_tokens=" in example
    assert re.search(r"^\d", run(example.replace("n_ctx=8192", "n_ctx=512"), clone, site).splitlines()[-1])


def test_elsewhere_nothing_changes(clone, site, tmp_path):
    found = run("import edgekv, llama_cpp; print(edgekv.__file__)", tmp_path, site)
    assert Path(found.strip()) == site / "edgekv" / "__init__.py"
    # Python uses a tree that brings its own libraries, as an editable installation does
    found = run(f"import sys; sys.path.insert(0, {str(site)!r})\nimport edgekv, llama_cpp; print(edgekv.__file__)", clone, clone)
    assert Path(found.strip()) == site / "edgekv" / "__init__.py"
