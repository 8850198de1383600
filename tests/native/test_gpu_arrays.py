"""The file of the kernels that Python launches: what the build asks nvcc for, and what is in the file that nvcc makes."""

import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from support import fake_cupy
from support.native_build import NATIVE

from edgekv.arrays import cupy_ops

CUDA = NATIVE / "cuda"
TOOLKIT = Path.home() / ".cache" / "edgekv" / "cuda" / "toolkit"
"""Where CI's compile check keeps the compiler."""
SIZES = {"int": "u32", "float": "f32", "unsigned long long": "u64"}
"""PTX's types of parameters; a pointer is a u64."""


@pytest.mark.parametrize(("architectures", "codes"), [
    ("75;86", "75:sm_75 75:compute_75 86:sm_86 86:compute_86"),
    ("89-real", "89:sm_89 89:compute_89"),  # as with one card of this machine: PTX for its successor
    ("80-real;120a-real", "80:sm_80 120a:sm_120a 120:compute_120"),  # PTX of 120a is for that one alone
    ("90-virtual", "90:compute_90"),
])
def test_what_the_build_asks_for(tmp_path: Path, architectures: str, codes: str):
    script = tmp_path / "ask.cmake"
    script.write_text(f'cmake_minimum_required(VERSION 3.22)\ninclude("{CUDA / "arrays.cmake"}")\n'
                      f'edgekv_cuda_codes("{architectures}" codes)\nmessage("${{codes}}")\n')
    done = subprocess.run(["cmake", "-P", str(script)], capture_output=True, text=True)
    asked = re.findall(r"-gencode=arch=compute_(\w+),code=(\w+)", done.stderr)
    assert " ".join(":".join(one) for one in asked) == codes, done.stderr


def test_python_asks_for_the_kernels_that_are_there():
    assert set(declared()) == {f"edgekv_{name}" for name in cupy_ops.KERNELS}


def declared() -> dict[str, list[str]]:
    """The types of each kernel's parameters."""
    found = re.findall(r'^(?:extern "C" __global__ void )?(edgekv_\w+)\(([^)]*)\) \{', fake_cupy.sources(), re.M)
    return {name: [re.sub(r"\s*\w+$", "", part.strip()) for part in parameters.split(",")] for name, parameters in found}


@pytest.fixture(scope="module")
def fatbin(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """As the build makes it, but not compressed."""
    nvcc = shutil.which(os.environ.get("CUDACXX") or "nvcc") or next(TOOLKIT.glob("nvidia/cu*/bin/nvcc"), None)
    if nvcc is None:
        pytest.skip("there is no nvcc; native/cuda/compile_check.py --install brings it")
    folder = tmp_path_factory.mktemp("fatbin")
    (folder / "CMakeLists.txt").write_text(
        f'cmake_minimum_required(VERSION 3.22)\nproject(toy LANGUAGES NONE)\ninclude("{CUDA / "arrays.cmake"}")\n'
        f'edgekv_cuda_arrays("{nvcc}" "75;80-real;120a-real" "-no-compress" ${{CMAKE_CURRENT_BINARY_DIR}}/edgekv-arrays.fatbin)\n')
    for command in (["cmake", "-S", folder, "-B", folder], ["cmake", "--build", folder, "--target", "edgekv-arrays"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "edgekv-arrays.fatbin").read_bytes()


def parts(fatbin: bytes) -> list[tuple[str, int, bytes]]:
    """What a driver chooses from: PTX or machine code, the architecture, the bytes."""
    magic, _, header, size = struct.unpack_from("<IHHQ", fatbin)
    assert magic == 0xBA55ED50 and header + size <= len(fatbin)
    at, found = header, []
    while at < header + size:
        kind, _, own, length = struct.unpack_from("<HHIQ", fatbin, at)
        found.append(({1: "PTX", 2: "ELF"}[kind], struct.unpack_from("<I", fatbin, at + 28)[0], fatbin[at + own : at + own + length]))
        at += own + length
    return found


def test_each_architecture_has_code(fatbin: bytes):
    assert sorted((kind, arch) for kind, arch, _ in parts(fatbin)) == [("ELF", 75), ("ELF", 80), ("ELF", 120), ("PTX", 75), ("PTX", 120)]


def test_the_kernels_of_the_file_are_those_that_python_launches(fatbin: bytes):
    """By name, number and types of parameters; cupy's stand-in holds the launches to the same declarations."""
    expected = {name: ["u64" if kind.endswith("*") else SIZES[kind] for kind in kinds] for name, kinds in declared().items()}
    for kind, arch, code in parts(fatbin):
        if kind == "ELF":
            assert set(re.findall(rb"\.text\.(\w+)", code)) == {name.encode() for name in expected}, arch
            continue
        entries = re.findall(r"\.entry (\w+)\s*\((.*?)\)", code.decode(errors="replace"), re.S)
        assert {name: re.findall(r"\.param \.(\w+)", parameters) for name, parameters in entries} == expected, arch
