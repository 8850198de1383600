"""The device's kernels on the emulated device: native/tests/device/test_*.cpp, built by the host's compiler."""

import re
import subprocess
from pathlib import Path

import pytest
from support.native_build import NATIVE, Programs, needs

SOURCE = NATIVE / "tests" / "device"
PROGRAMS = sorted(path.stem for path in SOURCE.glob("test_*.cpp"))
RACING = [name for name in PROGRAMS if name not in ("test_emulator", "test_engine")]  # the kernels alone, and what is found; it takes four times as long
BARRIER = re.compile(r"\s*__(?:sync(?:threads|warp)|threadfence)\(\);")
# one of each kind: found at the first block, without an error in any result
PLANTED = {"attend_part.cuh": "test_attend_device", "attend_error.cuh": "test_attend_device", "sample_device.cu": "test_hot_rows_device",
           "store_rows.cuh": "test_store_device", "sketch_keys.cuh": "test_sketch_device",
           "sketch_scan_device.cu": "test_sketch_device", "sketch_build.cuh": "test_sketch_device", "arriving_keys.cuh": "test_sketch_device",
           "attend_merge.cu": "test_attend_device"}


GPP = ("g++",)
"""The compiler of the emulated device."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(SOURCE, tmp_path_factory.mktemp("device"), names=GPP)


@pytest.fixture(scope="module")
def racing(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """The same with the detector of races."""
    return Programs(SOURCE, tmp_path_factory.mktemp("races"), "-DRACES=ON", names=GPP)


def barriers(name: str) -> list[int]:
    """Lines of a file of kernels that hold a barrier or a fence."""
    lines = (SOURCE.parents[1] / "cuda" / "kernels" / name).read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if BARRIER.match(line)]


@needs(GPP)
@pytest.mark.parametrize("program", PROGRAMS)
def test_program(programs: Programs, program: str):
    """Without a warning, and right whatever the order of threads, blocks and streams, which the seed draws, and whether the device runs ahead of
    those who wait for it. Device memory is out of the host's reach, as on a GPU, while no kernel runs. Kernels alone run in a second order below;
    test_engine draws its orders itself."""
    assert [line for line in programs.built(program).splitlines() if "warning:" in line] == []
    for seed in ("1",) if program in (*RACING, "test_engine") else ("1", "2"):  # 28 multiprocessors, and 132
        programs.passes(program, EDGEKV_EMULATOR_SEED=seed, EDGEKV_EMULATOR_STRICT="1")


@needs(GPP)
@pytest.mark.parametrize("program", RACING)
def test_kernels_do_not_race(racing: Programs, program: str):
    racing.passes(program, EDGEKV_EMULATOR_SEED="3")  # one multiprocessor: a split reads most rows there


@needs(GPP)
@pytest.mark.parametrize("name", PLANTED)
def test_a_missing_barrier_is_found(racing: Programs, name: str):
    """Each barrier or fence of a file in turn is left out."""
    assert barriers(name)
    for number in barriers(name):
        done = racing.run(PLANTED[name], EDGEKV_EMULATOR_WITHOUT=f"{name}:{number}")
        assert done.returncode != 0, f"{name}:{number}"
        assert "memory at" in done.stdout, f"{name}:{number}: {done.stdout[-2000:]}"


def test_nothing_waits_for_the_whole_device():
    """Another context may record a graph meanwhile. CUDA ends that recording at such a call, in whatever mode the stream records."""
    waits = re.compile(r"\b(?:cuda(?:Device|Thread)|cuCtx)Synchronize\b")
    sources = [path for path in (NATIVE / "cuda").rglob("*") if path.suffix in (".cu", ".cuh", ".h")]
    assert len(sources) > 40 and [path.name for path in sources if waits.search(path.read_text())] == []


KNOWN_13 = "75 80 86 87 88 89 90 100 103 110 120 121"
KNOWN_12_4 = "50 52 53 60 61 62 70 72 75 80 86 87 89 90"


@pytest.mark.parametrize(("wanted", "cards", "known", "ggml", "ours"), [
    ("", "", KNOWN_13, "75;80;86;89;90;120", "75;80;86;89;90;120"),
    ("", "", KNOWN_12_4, "75;80;86;89;90", "75;80;86;89;90"),  # 12.0 came with CUDA 12.8
    ("", "8.9", KNOWN_13, "89-real", "89-real"),
    ("native", "8.9;8.9", KNOWN_13, "89-real", "89-real"),
    ("", "7.5", KNOWN_13, "75-real", "75-real"),
    ("", "6.1", KNOWN_12_4, "61-real", "75"),  # stock attention there; ours is compiled to say why
    ("", "6.1;8.6", KNOWN_12_4, "61-real;86-real", "86-real"),
    ("", "12.0", KNOWN_12_4, "90", "90"),  # no suffix: its PTX is compiled again by the driver
    ("", "7.0;9.0", KNOWN_13, "90-real", "90-real"),
    ("", "7.0", KNOWN_13, "75;80;86;89;90;120", "75;80;86;89;90;120"),
    ("", "", "", "75;80;86;89;90;120", "75;80;86;89;90;120"),
    ("75,90-real", "8.9", KNOWN_13, "75;90-real", "75;90-real"),
    ("120a", "", KNOWN_13, "120a", "120a"),
    ("all-major", "", KNOWN_12_4, "all-major", "75;80;86;89;90"),
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
