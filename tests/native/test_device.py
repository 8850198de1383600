"""The device's kernels on the emulated device: native/tests/device/test_*.cpp, built by the host's compiler."""

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.beside import Beside, parameters
from support.native_build import NATIVE, compiler, needs, steps

SOURCE = NATIVE / "tests" / "device"
PROGRAMS = sorted(path.stem for path in SOURCE.glob("test_*.cpp"))
SEEDS = ("1", "2")  # 28 multiprocessors, and 132
RACING = [name for name in PROGRAMS if name not in ("test_emulator_faults", "test_engine", "test_streams")]  # the kernels alone; it takes four times as long
BARRIER = re.compile(r"\s*__(?:sync(?:threads|warp)|threadfence)\(\);")
# one of each kind: found at the first block, without an error in any result
PLANTED = {"attend_part.cuh": "test_attend_device", "attend_error.cuh": "test_attend_device", "sample_device.cu": "test_hot_rows_device",
           "choose_device.cu": "test_choose_device", "store_rows.cuh": "test_store_device", "sketch_keys.cuh": "test_sketch_device",
           "sketch_scan_device.cu": "test_sketch_device", "sketch_build.cuh": "test_sketch_device", "arriving_keys.cuh": "test_sketch_device",
           "attend_merge.cu": "test_attend_device"}
READS = "test_reads_device"


GPP = ("g++",)
"""The compiler of the emulated device."""


def begin_programs(beside: Beside, folder: Callable[[str], Path], items: Sequence[pytest.Item]) -> None:
    if compiler(GPP) is None:
        return
    programs, names = parameters(items, "test_program"), {item.originalname for item in items}
    times = [READS] if "test_an_emulated_device_has_no_times" in names else []
    targets = PROGRAMS if "test_no_warnings" in names else sorted({*programs, *times})
    if targets:
        built = folder("device")
        # a program that does not compile is its own test's failure
        beside.build(("device",), *steps(SOURCE, built, targets=targets, names=GPP, n_jobs=beside.n_compilers, tool=["--keep-going"]))
        for name in programs:
            beside.add(("device", name), ["cmake", "--build", built, "--target", name], after=("device",))
            for seed in SEEDS:
                # The seed draws the order of threads, blocks and streams, and whether the device runs ahead of those who wait for it.
                # Device memory is out of the host's reach, as on a GPU, while no kernel runs.
                beside.add(("device", name, seed), [built / name], after=("device", name), EDGEKV_EMULATOR_SEED=seed, EDGEKV_EMULATOR_STRICT="1")
        for name in times:
            beside.add(("times", name), [built / name, "--bench", "128"], after=("device",))
    racing = parameters(items, "test_kernels_do_not_race")
    planted = [PLANTED[name] for name in parameters(items, "test_a_missing_barrier_is_found")]
    if racing or planted:
        built = folder("races")
        beside.build(("races",), *steps(SOURCE, built, "-DRACES=ON", targets=sorted({*racing, *planted}), names=GPP, n_jobs=beside.n_compilers))
        for name in racing:  # on one multiprocessor: a split reads most rows there
            beside.add(("races", name), [built / name], after=("races",), EDGEKV_EMULATOR_SEED="3")
        for name in parameters(items, "test_a_missing_barrier_is_found"):
            for number in barriers(name):
                beside.add(("races", name, str(number)), [built / PLANTED[name]], after=("races",), EDGEKV_EMULATOR_WITHOUT=f"{name}:{number}")


def barriers(name: str) -> list[int]:
    """Lines of a file of kernels that hold a barrier or a fence."""
    lines = (SOURCE.parents[1] / "cuda" / "kernels" / name).read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if BARRIER.match(line)]


@needs(GPP)
def test_no_warnings(beside: Beside):
    assert [line for line in beside.end(("device",)).said.splitlines() if "warning:" in line] == []


@needs(GPP)
@pytest.mark.parametrize("program", PROGRAMS)
def test_program(beside: Beside, program: str):
    beside.check(("device", program), *(("device", program, seed) for seed in SEEDS))


@needs(GPP)
def test_an_emulated_device_has_no_times(beside: Beside):
    done = beside.end(("times", READS))
    assert done.returncode == 1 and "times of an emulated device mean nothing" in done.said and "gb_per_s" not in done.said, done.said[-2000:]


@needs(GPP)
@pytest.mark.parametrize("program", RACING)
def test_kernels_do_not_race(beside: Beside, program: str):
    beside.check(("races",), ("races", program))


@needs(GPP)
@pytest.mark.parametrize("name", PLANTED)
def test_a_missing_barrier_is_found(beside: Beside, name: str):
    """Each barrier or fence of a file in turn is left out."""
    beside.check(("races",))
    assert barriers(name)
    for number in barriers(name):
        done = beside.end(("races", name, str(number)))
        assert done.returncode != 0, f"{name}:{number}"
        assert "memory at" in done.said, f"{name}:{number}: {done.said[-2000:]}"


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
