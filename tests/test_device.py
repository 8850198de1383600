"""The device's kernels on the emulated device: native/cuda/tests/test_*.cpp, built by the host's compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "native" / "cuda" / "tests"
PROGRAMS = sorted(path.stem for path in SOURCE.glob("test_*.cpp"))
SEEDS = ("1", "2")  # one for each core


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("cmake") or not shutil.which("g++"):
        pytest.skip("cmake and g++ are needed to build the tests of the device's kernels")
    build = tmp_path_factory.mktemp("device")
    configure = ["cmake", "-S", str(SOURCE), "-B", str(build), "-G", "Unix Makefiles", "-DCMAKE_CXX_COMPILER=g++"]
    done = subprocess.run(configure, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    # all at once for two cores; a program that does not compile is its own test's failure, below
    compile_ = ["cmake", "--build", str(build), "--parallel", "2", "--", "--keep-going"]
    done = subprocess.run(compile_, capture_output=True, text=True)
    (build / "warnings").write_text("".join(line for line in done.stderr.splitlines(True) if "warning:" in line))
    return build


def test_no_warnings(programs: Path):
    assert (programs / "warnings").read_text() == ""


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(programs: Path, program: str):
    done = subprocess.run(["cmake", "--build", str(programs), "--target", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-8000:]
    # The seed draws the order of threads, blocks and streams, and whether the device runs ahead of those who wait for it. Device
    # memory is out of the host's reach, as on a GPU, while no kernel runs.
    running = []
    for seed in SEEDS:
        environment = {**os.environ, "EDGEKV_EMULATOR_SEED": seed, "EDGEKV_EMULATOR_STRICT": "1"}
        command = [str(programs / program)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment))
    said = [process.communicate()[0] for process in running]
    for seed, process, text in zip(SEEDS, running, said):
        assert process.returncode == 0, f"seed {seed}:\n{text[-8000:]}"
