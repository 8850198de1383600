"""The vectors of AArch64 on other machines, where a cross compiler and an emulator of its programs are installed.

Their operations give what the portable ones give. The test programs of the kernels run there too, but take the emulator an hour: native/README.md
says how.
"""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.native_build import NATIVE

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
ROUNDED = ("exp", "softcap")

pytestmark = [pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed") for name in (COMPILER, EMULATOR)]

Results = list[tuple[str, np.ndarray]]


def results(into: Path, vectors: str, *flags: str) -> Results:
    """The name of each operation and what it gave for the same inputs."""
    program = into / vectors
    command = [COMPILER, "-static", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1", *flags, f"-I{NATIVE / 'src'}",
               f'-DVECTORS="kernels/simd/simd_{vectors}.h"', "-o", program, NATIVE / "tests" / "host" / "simd_operations.cpp"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    text = subprocess.run([EMULATOR, "-cpu", "max", program], capture_output=True, text=True, check=True).stdout
    parts = (line.partition(":") for line in text.splitlines())
    return [(name, np.array(values.split(), dtype=np.float64)) for name, _, values in parts]


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results(tmp_path_factory.mktemp("portable"), "portable")


@pytest.mark.parametrize("flags", [[], ["-march=armv8.2-a+dotprod"]], ids=["neon", "dotprod"])
def test_the_operations_are_those_of_the_portable_vectors(tmp_path: Path, portable: Results, flags: list[str]):
    found = results(tmp_path, "neon", *flags)
    assert len(found) == len(portable) > 60
    for (name, got), (wanted_name, want) in zip(found, portable, strict=True):
        assert name == wanted_name
        np.testing.assert_allclose(got, want, rtol=1e-6 if name in ROUNDED else 0, atol=0, err_msg=name)
