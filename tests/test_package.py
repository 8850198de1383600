"""The installed package: its requirements and its contents."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from edgekv.cli.main import cli

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
METADATA = importlib.metadata.metadata("edgekv")
OLDEST = re.fullmatch(r">=(3\.\d+)", METADATA["Requires-Python"])[1]
NEEDS = [Requirement(text) for text in importlib.metadata.requires("edgekv")]

NEWEST_ON_3_10 = {"httpx2": "2.14.0", "numpy": "2.2.6", "platformdirs": "4.12.4", "matplotlib": "3.10.9", "hypothesis": "6.168.5"}
"""The last release for Python 3.10 of each dependency that has dropped it."""


@pytest.mark.parametrize("need", [need for need in NEEDS if need.name != "edgekv"], ids=str)
def test_what_is_needed_runs_on_every_python_promised(need):
    """pip takes the newest release that runs on its Python: one exists for the oldest Python that we support."""
    try:
        found = importlib.metadata.distribution(need.name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed")
    assert found.version in need.specifier
    if OLDEST in SpecifierSet(found.metadata["Requires-Python"] or ""):
        return
    assert OLDEST == "3.10" and NEWEST_ON_3_10.get(need.name, "none") in need.specifier, \
        f"{need.name} {found.version} needs Python {found.metadata['Requires-Python']}, and we promise {OLDEST}"


def test_it_carries_its_licence_and_those_of_what_it_contains():
    assert METADATA["License-Expression"] == "MIT" and METADATA.get_all("License-File") == ["LICENSE"]
    texts = {path.as_posix().partition(".dist-info/licenses/")[2]: path.read_text() for path in importlib.metadata.files("edgekv")
             if ".dist-info/licenses/" in path.as_posix()}
    assert "The EdgeKV authors" in texts["LICENSE"]
    for name, author in {
        "LICENSE": "The ggml authors", "licenses/LICENSE-jsonhpp": "Niels Lohmann", "licenses/LICENSE-llamafile": "Mozilla Foundation",
        "vendor/cpp-httplib/LICENSE": "yhirose", "vendor/hash/rotate-bits/LICENSE.md": "William Casarin",
        "vendor/hash/sha256/LICENSE": "Igor Pavlov", "vendor/hash/xxhash/LICENSE": "Yann Collet",
    }.items():
        assert author in texts[f"llama.cpp/{name}"], name


def test_everything_names_the_same_version():
    """The installed package, its sources, the command, the newest release in CHANGELOG and the wheel that README installs."""
    version = METADATA["Version"]
    said = {path: (ROOT / path).read_text(encoding="utf-8") for path in ("pyproject.toml", "CHANGELOG.md", "README.md")}
    assert re.search(r'^version = "(.+)"$', said["pyproject.toml"], re.MULTILINE)[1] == version
    assert CliRunner().invoke(cli, ["--version"]).output.split()[-1] == version
    releases = re.findall(r"^## (\S+) - (\d{4}-\d{2}-\d{2})$", said["CHANGELOG.md"], re.MULTILINE)
    assert releases[0][0] == version and releases[0][1] == max(date for _, date in releases)
    assert set(re.findall(r"edgekv-([\d.]+)-", said["README.md"])) == {version}


def test_public_names_stay_what_they_are(tmp_path):
    """Also behind the first use: an import puts a package where a module's attribute was."""
    program = "import edgekv; print([getattr(edgekv.runtime, name) is getattr(edgekv.runtime, name) for name in edgekv.runtime._PUBLIC], edgekv.Runtime)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith("[True, True") and "edgekv.runtime.runtime.Runtime" in done.stdout, done.stderr


def test_the_wheel_leaves_the_tables_out():
    """The product's leaves the whole laboratory out."""
    tables = list((ROOT / "edgekv" / "lab" / "results").glob("*.csv"))
    laboratory = tomllib.loads((ROOT / "edgekv" / "lab" / "pyproject.toml").read_text(encoding="utf-8"))
    included = laboratory["tool"]["hatch"]["build"]["targets"]["wheel"]["include"]
    excluded = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["scikit-build"]["wheel"]["exclude"]
    assert tables and not any(path.match(pattern) for path in tables for pattern in included)
    assert "edgekv/lab/**" in excluded
    others = [path.relative_to(ROOT) for path in (ROOT / "edgekv").rglob("*.py") if not path.is_relative_to(ROOT / "edgekv" / "lab")]
    assert not any(path.match(pattern) for path in others for pattern in excluded)


def test_public_names_are_all_that_dir_shows():
    """Types come with them: the wheel is marked as typed."""
    import edgekv

    assert dir(edgekv) == sorted(edgekv.__all__) and all(getattr(edgekv, name) is not None for name in edgekv.__all__)
    assert "Llama" in edgekv.__all__ and (Path(edgekv.__file__).parent / "py.typed").is_file()


PROGRAM = ("import llama_cpp; llama = llama_cpp.Llama({!r}, n_ctx=512, flash_attn=False, n_parts=1, verbose=False); "
           "print(llama.kv.mode.value, llama.kv.layers[0].hooked)")


def test_a_program_whose_llama_is_ours(synthetic, tmp_path):
    """By a call, and by the command: the program itself knows nothing of EdgeKV, and finds its own modules as under Python."""
    program = tmp_path / "apps" / "program.py"
    program.parent.mkdir()
    program.write_text("import beside; " + PROGRAM.format(str(synthetic("llama"))))
    (program.parent / "beside.py").touch()
    (tmp_path / "package.py").write_text(PROGRAM.format(str(synthetic("llama"))) + "; import sys; print(sys.argv[1:])")
    own = f"import edgekv; edgekv.install(kv='exact'); exec(open({str(tmp_path / 'package.py')!r}).read())"
    command = str(Path(sysconfig.get_path("scripts"), "edgekv"))
    for arguments, more in ((["-c", own], "[]\n"), ([command, "run", str(program)], ""), (["-m", "edgekv", "run", str(program)], ""),
                            ([command, "run", "-m", "package", "--port", "1"], "['--port', '1']\n")):
        done = subprocess.run([sys.executable, *arguments], env=os.environ | {"EDGEKV_KV": "exact"}, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout == f"exact True\n{more}" and done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["nomodule", "json.nomodule", "nomodule.deep", "xml", ".x"])
def test_a_module_that_is_none_gets_a_sentence(module):
    done = subprocess.run([sys.executable, "-m", "edgekv", "run", "-m", module], capture_output=True, text=True)
    assert done.returncode == 2 and f"there is no module {module}; name one that `python -m` finds" in done.stderr and "Traceback" not in done.stderr


def test_an_installed_llama_is_copied_as_it_is(synthetic, tmp_path):
    """Under either name of the class."""
    program = ("import edgekv, pickle; edgekv.install(kv='exact', n_ctx=64); from llama_cpp.llama import Llama; "
               f"llama = Llama({str(synthetic('llama'))!r}); llama.kv.mode = 'sparse'; "
               "copy = pickle.loads(pickle.dumps(llama)); print(copy.kv)")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith("<edgekv.Runtime: mode sparse, 2 of 2 layers served"), done.stderr


LIBRARIES = """
import os, subprocess, sys
{}
import llama_cpp, llama_cpp.mtmd_cpp
print(llama_cpp.llama_cpp._lib._name, llama_cpp.mtmd_cpp._libmtmd._name, "LLAMA_CPP_LIB_PATH" in os.environ)
print(llama_cpp.Llama({!r}, n_ctx=64, verbose=False).n_ctx())
"""


@pytest.mark.parametrize("case", ["alone", "behind ours", "with its own", "behind ours, with its own", "told by a variable"])
def test_llama_cpp_has_libraries(synthetic, tmp_path, case):
    """Ours, where it has none or edgekv came before it; no variable tells a child process. Those of its own or of a variable are left alone."""
    ours = Path(importlib.metadata.distribution("edgekv").locate_file("edgekv/lib"))
    environment = {name: value for name, value in os.environ.items() if name not in ("LLAMA_CPP_LIB_PATH", "MTMD_CPP_LIB")}
    expected = ours
    if "own" in case:
        shutil.copytree(importlib.util.find_spec("llama_cpp").submodule_search_locations[0], tmp_path / "llama_cpp")
        (tmp_path / "llama_cpp" / "lib").symlink_to(ours)
        environment["PYTHONPATH"] = str(tmp_path)
        expected = ours if "ours" in case else tmp_path / "llama_cpp" / "lib"
    elif "variable" in case:
        expected = tmp_path / "other"
        expected.symlink_to(ours)
        environment |= {"LLAMA_CPP_LIB_PATH": str(expected), "MTMD_CPP_LIB": str(expected)}
    program = LIBRARIES.format("import edgekv" if "ours" in case else "", str(synthetic("llama")))
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True)
    names, _, n_ctx = done.stdout.strip().partition("\n")
    assert names == f"{expected}/libllama.so {expected}/libmtmd.so {'variable' in case}", done.stderr
    assert int(n_ctx) >= 64 and done.returncode == 0


def test_what_finds_them_goes_with_the_package():
    """pip removes what the package lists."""
    assert {"edgekv.pth", "edgekv_libraries.py"} <= {path.as_posix() for path in importlib.metadata.files("edgekv")}
