"""Native programs and libraries that only tests need, built by the CMake and the compiler at hand."""

import shutil
import subprocess
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


def steps(source: Path, into: Path, *options: str, targets: Sequence[str] = (), names: Sequence[str] = COMPILERS, n_jobs: int = 2,
          tool: Sequence[str] = ()) -> list[list[str]]:
    """The commands that configure `source` and build `targets`, or all of it, in `into`. `tool` are options of make."""
    configure = ["cmake", "-S", str(source), "-B", str(into), "-G", "Unix Makefiles", f"-DCMAKE_CXX_COMPILER={compiler(names)}", *options]
    compile_ = ["cmake", "--build", str(into), "--parallel", str(n_jobs), *(["--target", *targets] if targets else []), "--", *tool]
    return [configure, compile_]


def build(source: Path, into: Path, *options: str, names: Sequence[str] = COMPILERS) -> Path:
    """Builds all of `source` in `into`, which is returned. Skips the test where nothing can build it."""
    if compiler(names) is None:
        pytest.skip(f"cmake and a C++ compiler ({' or '.join(names)}) are needed to build what this tests")
    for command in steps(source, into, *options, names=names):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return into
