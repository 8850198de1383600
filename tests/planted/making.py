"""Environments with an EdgeKV of their own before that of the environment at hand, which keeps its files: one whose Python files change, and one whose
native code holds all native faults behind a variable."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from .fault import Fault, plant

SITE = Path(sysconfig.get_path("purelib"))
PACKAGES = {"edgekv": "edgekv", "cli": "edgekv/cli", "models": "edgekv/models"}
"""Where the wheel has the tree's packages."""


@dataclass(frozen=True)
class Place:
    """`tree`: whose tests run, with `env`."""

    env: Path
    tree: Path

    @property
    def python(self) -> Path:
        return self.env / "bin" / "python"

    @property
    def site(self) -> Path:
        return Path(sysconfig.get_path("purelib", vars={"base": str(self.env)}))

    def installed(self, name: str) -> Path:
        """The installed copy of a Python file of the tree."""
        package, _, rest = name.partition("/")
        return self.site / PACKAGES[package] / rest

    def write(self, name: str, text: str) -> None:
        """Change an installed Python file, in a way that no kept bytecode stands for it."""
        path = self.installed(name)
        path.write_text(text)
        for kept in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            kept.unlink()

    def sync(self) -> None:
        """Install the tree's Python files."""
        for package in PACKAGES:
            for path in (self.tree / package).rglob("*"):
                if path.is_file() and path.suffix != ".pyc":
                    to = self.installed(str(path.relative_to(self.tree)))
                    to.parent.mkdir(parents=True, exist_ok=True)
                    if not to.is_file() or to.read_bytes() != path.read_bytes():
                        shutil.copyfile(path, to)


def environment(place: Place) -> Place:
    """Made where it is missing. Its programs are those of the environment at hand, except edgekv."""
    if not place.env.is_dir():
        venv.create(place.env, symlinks=True)
        shutil.copytree(SITE / "edgekv", place.site / "edgekv", ignore=shutil.ignore_patterns("__pycache__"))
        (place.site / "installed.pth").write_text(f"{SITE}\n")
        for program in Path(sys.executable).parent.iterdir():
            if not (to := place.env / "bin" / program.name).exists() and program.name != "edgekv":
                to.symlink_to(program)
        edgekv = place.env / "bin" / "edgekv"
        edgekv.write_text(f"#!{place.python}\nfrom edgekv.cli.main import main\nmain()\n")
        edgekv.chmod(0o755)
    place.sync()
    return place


def _tools(root: Path) -> tuple[str, list[str]]:
    """CMake and the options that name the compilers, as of the tree's own build, whose objects the cache has."""
    built = next(root.glob("build/*/CMakeCache.txt"), None)
    known = dict(re.findall(r"^(\w+):\w+=(.*)$", built.read_text(), re.M)) if built else {}
    names = ("CMAKE_C_COMPILER", "CMAKE_CXX_COMPILER")
    tools = {name: path for name, path in known.items() if shutil.which(path)}  # pip's own environment is gone
    return tools.get("CMAKE_COMMAND", "cmake"), [f"-D{name}={tools[name]}" for name in names if name in tools]


def planted(folder: Path, root: Path, faults: dict[int, Fault]) -> Place:
    """The tree and environment with these native faults, compiled together. A compiler cache that knows the tree without them knows most objects."""
    place = Place(folder / "native", folder / "tree")
    if (folder / "built").is_file():
        return environment(place)
    shutil.rmtree(place.tree, ignore_errors=True)
    skipped = shutil.ignore_patterns(".git", ".venv", ".hypothesis", ".*_cache", "__pycache__", "*.egg-info")
    shutil.copytree(root, place.tree, ignore=lambda folder, names: {*skipped(folder, names), *({"build", "dist"} if Path(folder) == root else ())})
    plant(place.tree, faults)
    environment(place)
    build = place.tree / "build" / "planted"  # as deep as a usual one: the cache compares paths from there
    cmake, compilers = _tools(root)
    variables = os.environ | {"EDGEKV_CUDA": "off", "EDGEKV_ASSERTS": "on", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with (folder / "build.log").open("w") as log:
        for command in (["-S", place.tree / "native", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DPython3_EXECUTABLE={sys.executable}",
                         *compilers],
                        ["--build", build, "--target", "edgekv-all", "--parallel", "2"],
                        ["--install", build, "--component", "edgekv", "--prefix", place.site]):
            if subprocess.run([cmake, *map(str, command)], env=variables, stdout=log, stderr=log).returncode:
                raise SystemExit(f"the tree with the native faults was not built; {log.name} says why")
    (folder / "built").write_text("")
    return place
