"""Native programs and libraries that only tests need, built by the CMake and the compiler at hand."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"
COMPILERS = ("g++", "clang++", "c++")
"""g++ first, as for the emulated device: a compiler cache tells them by their names."""


def compiler(names: Sequence[str] = COMPILERS) -> str | None:
    """The first of these compilers that is installed beside CMake."""
    return next(filter(shutil.which, names), None) if shutil.which("cmake") else None


def needs(names: Sequence[str] = COMPILERS) -> pytest.MarkDecorator:
    """Skips tests of what nothing can build here."""
    return pytest.mark.skipif(compiler(names) is None, reason=f"cmake and a C++ compiler ({' or '.join(names)}) are needed")


def configure(source: Path, into: Path, *options: str, names: Sequence[str] = COMPILERS) -> list[str]:
    """The command that configures `source` in `into`, which is given a link to native/: a compiler cache knows files by their paths relative to
    `into` (standalone.cmake), so it finds what another checkout, or another worker, has compiled."""
    (into / NATIVE.name).symlink_to(NATIVE)
    return ["cmake", "-S", str(into / source.relative_to(NATIVE.parent)), "-B", str(into), "-G", "Unix Makefiles",
            f"-DCMAKE_CXX_COMPILER={compiler(names)}", *options]


def prepare(folder: Path) -> Path:
    """The pinned llama.cpp with our patches, in `folder`. Raises CalledProcessError, with a sentence, where there is no source."""
    subprocess.run([sys.executable, NATIVE.parent / "patches" / "apply.py", "--prepare", folder], check=True, capture_output=True, text=True)
    return folder


def build(source: Path, into: Path, *options: str, names: Sequence[str] = COMPILERS) -> Path:
    """Builds all of `source` in `into`, which is returned. Skips the test where nothing can build it."""
    if compiler(names) is None:
        pytest.skip(f"cmake and a C++ compiler ({' or '.join(names)}) are needed to build what this tests")
    for command in configure(source, into, *options, names=names), ["cmake", "--build", str(into), "--parallel", "2"]:
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return into


def program(into: Path, name: str, sources: Sequence[str], *options: str, links: Sequence[str] = ()) -> Path:
    """A program of single sources, compiled in `into`. Their paths and those in `options` are relative to it, "checkout" being ours: a compiler
    cache finds what was compiled elsewhere. Raises CalledProcessError, with the compiler's words, where it does not compile."""
    if not (into / "checkout").is_symlink():
        (into / "checkout").symlink_to(NATIVE.parent)
    cached = ["ccache"] if shutil.which("ccache") else []
    command = [*cached, str(compiler()), "-std=c++17", "-O1", *options]
    objects = [f"{name}-{number}.o" for number in range(len(sources))]
    for source, compiled in zip(sources, objects):
        subprocess.run([*command, "-c", source, "-o", compiled], cwd=into, env=os.environ | {"CCACHE_BASEDIR": "/", "CCACHE_NOHASHDIR": "1"},
                       check=True, capture_output=True, text=True)
    subprocess.run([*command, *objects, "-o", name, *links], cwd=into, check=True, capture_output=True, text=True)
    return into / name


class Programs:
    """Programs of one CMake project, each built when a test first asks for it."""

    def __init__(self, source: Path, into: Path, *options: str, names: Sequence[str] = COMPILERS) -> None:
        self._folder = into
        self._built: dict[str, subprocess.CompletedProcess] = {}
        subprocess.run(configure(source, into, *options, names=names), check=True, capture_output=True)

    def built(self, name: str) -> str:
        """What the compiler said of `name`. Fails the test that asks where it does not compile."""
        if name not in self._built:
            command = ["cmake", "--build", self._folder, "--parallel", "2", "--target", name]
            self._built[name] = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        done = self._built[name]
        assert done.returncode == 0, done.stdout[-8000:]
        return done.stdout

    def run(self, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        """The program's exit code, and both of its outputs as one."""
        self.built(name)
        return subprocess.run([self._folder / name, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=os.environ | environment)

    def passes(self, name: str, *arguments: str, **environment: str) -> None:
        done = self.run(name, *arguments, **environment)
        assert done.returncode == 0, done.stdout[-8000:]
