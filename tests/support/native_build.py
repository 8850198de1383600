"""Native programs and libraries that only tests need, built by the CMake and the compiler at hand."""

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"


def build(source: Path, into: Path, *targets: str, compilers: tuple[str, ...] = ("c++", "g++", "clang++")) -> Path:
    """Configure `source` and build `targets`, or all of it, in `into`, which is returned. Skips the test where there is no CMake, or none
    of the `compilers`; the first of them is taken."""
    compiler = next(filter(shutil.which, compilers), None)
    if not shutil.which("cmake") or compiler is None:
        pytest.skip(f"cmake and a C++ compiler ({' or '.join(compilers)}) are needed to build what this tests")
    compile_ = ["cmake", "--build", into, "--parallel", "2", *(["--target", *targets] if targets else [])]
    for command in (["cmake", "-S", source, "-B", into, f"-DCMAKE_CXX_COMPILER={compiler}"], compile_):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return into
