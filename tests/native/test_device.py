"""The device's kernels on the emulated device: native/tests/device/test_*.cpp, built by the host's compiler."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.side_by_side import SideBySide

SOURCE = Path(__file__).resolve().parents[2] / "native" / "tests" / "device"
PROGRAMS = sorted(path.stem for path in SOURCE.glob("test_*.cpp"))
SEEDS = ("1", "2")  # one for each core: 28 multiprocessors, and 132
RACING = [name for name in PROGRAMS if name not in ("test_engine", "test_streams")]  # the kernels alone; it takes four times as long
BARRIER = re.compile(r"\s*__(?:sync(?:threads|warp)|threadfence)\(\);")
# one of each kind: found at the first block, without an error in any result
PLANTED = {"attend_part.cuh": "test_attend_device", "attend_error.cuh": "test_attend_device", "sample_device.cu": "test_sample_device",
           "choose_device.cu": "test_choose_device", "store_device.cu": "test_store_device", "sketch_keys.cuh": "test_sketch_device",
           "sketch_scan_device.cu": "test_sketch_device", "attend_merge.cu": "test_attend_device"}


def configured(tmp_path_factory: pytest.TempPathFactory, name: str, *options: str) -> Path:
    if not shutil.which("cmake") or not shutil.which("g++"):
        pytest.skip("cmake and g++ are needed to build the tests of the device's kernels")
    build = tmp_path_factory.mktemp(name)
    configure = ["cmake", "-S", str(SOURCE), "-B", str(build), "-G", "Unix Makefiles", "-DCMAKE_CXX_COMPILER=g++", *options]
    done = subprocess.run(configure, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return build


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = configured(tmp_path_factory, "device")
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


@pytest.fixture(scope="session")
def racing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs whose kernels tell the emulator of each access."""
    build = configured(tmp_path_factory, "races", "-DRACES=ON")
    done = subprocess.run(["cmake", "--build", str(build), "--parallel", "2", "--target", *RACING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-8000:]
    return build


@pytest.fixture(scope="session")
def races(request: pytest.FixtureRequest, racing: Path) -> Iterator[SideBySide]:
    """On one multiprocessor: a split reads most rows there."""
    commands = {name: [str(racing / name)] for name in RACING}
    with SideBySide(request, ("test_kernels_do_not_race",), commands, EDGEKV_EMULATOR_SEED="3") as running:
        yield running


@pytest.mark.parametrize("program", RACING)
def test_kernels_do_not_race(races: SideBySide, program: str):
    done = races.end(program)
    assert done.returncode == 0, done.said[-8000:]


@pytest.mark.parametrize("name", PLANTED)
def test_a_missing_barrier_is_found(racing: Path, name: str):
    """Each barrier or fence of a file in turn is left out."""
    lines = (SOURCE.parents[1] / "cuda" / "kernels" / name).read_text().splitlines()
    barriers = [number for number, line in enumerate(lines, 1) if BARRIER.match(line)]
    assert barriers
    for number in barriers:
        done = subprocess.run([str(racing / PLANTED[name])], capture_output=True, text=True,
                              env=os.environ | {"EDGEKV_EMULATOR_WITHOUT": f"{name}:{number}"})
        assert done.returncode != 0, f"{name}:{number}"
        assert "memory at" in done.stderr, f"{name}:{number}: {done.stderr[-2000:]}"


KNOWN_13 = "75 80 86 87 88 89 90 100 103 110 120 121"
KNOWN_12_4 = "50 52 53 60 61 62 70 72 75 80 86 87 89 90"


@pytest.mark.parametrize(("wanted", "cards", "known", "ggml", "ours"), [
    ("", "", KNOWN_13, "80;86;89;90;120", "80;86;89;90;120"),
    ("", "", KNOWN_12_4, "80;86;89;90", "80;86;89;90"),  # 12.0 came with CUDA 12.8
    ("", "8.9", KNOWN_13, "89-real", "89-real"),
    ("native", "8.9;8.9", KNOWN_13, "89-real", "89-real"),
    ("", "7.5", KNOWN_13, "75-real", "80"),  # stock attention there; ours is compiled to say why
    ("", "6.1;8.6", KNOWN_12_4, "61-real;86-real", "86-real"),
    ("", "12.0", KNOWN_12_4, "90", "90"),  # no suffix: its PTX is compiled again by the driver
    ("", "7.0;9.0", KNOWN_13, "90-real", "90-real"),
    ("", "7.0", KNOWN_13, "80;86;89;90;120", "80;86;89;90;120"),
    ("", "", "", "80;86;89;90;120", "80;86;89;90;120"),
    ("75,90-real", "8.9", KNOWN_13, "75;90-real", "90-real"),
    ("120a", "", KNOWN_13, "120a", "120a"),
    ("all-major", "", KNOWN_12_4, "all-major", "80;86;89;90"),
])
def test_cuda_architectures(tmp_path: Path, wanted: str, cards: str, known: str, ggml: str, ours: str):
    script = tmp_path / "ask.cmake"
    script.write_text(f"""
        cmake_minimum_required(VERSION 3.22)
        include("{SOURCE.parents[1] / "cuda" / "architectures.cmake"}")
        edgekv_cuda_architectures("{wanted}" "{cards}" "{" ".join("compute_" + arch for arch in known.split())}" ggml ours)
        message("${{ggml}} ${{ours}}")
    """)
    done = subprocess.run(["cmake", "-P", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.split() == [ggml, ours]
