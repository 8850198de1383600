"""The processor that the libraries were compiled for, and the one that is here."""

import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import native_build

from edgekv._native import cpu
from edgekv.common.errors import EXIT_LIBRARY, NativeError

ROOT = Path(__file__).resolve().parents[2]
X86 = platform.machine() in ("x86_64", "AMD64")


def linux_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        pytest.skip("/proc/cpuinfo is Linux's")
    return set(next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "").split())


def test_this_build_runs_here():
    assert cpu.lacking(cpu.needed()) == ()


@pytest.mark.skipif(not X86, reason="names of x86-64")
@pytest.mark.parametrize("name", """sse3 ssse3 sse4_1 sse4_2 popcnt movbe lzcnt bmi1 bmi2 gfni avx fma f16c avx2 avx_vnni
avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq
avx512_fp16 avx512_bf16""".split())
def test_what_the_processor_has_is_what_the_system_says(name: str):
    names = {"lzcnt": "abm", "sse3": "pni"}  # as Linux calls them
    assert (cpu.lacking([name]) == ()) == (names.get(name, name) in linux_flags())


def test_a_name_that_is_not_known_counts_as_there():
    assert cpu.lacking(["an instruction of the next century"]) == ()


@pytest.mark.skipif(not X86, reason="flags of x86-64")
@pytest.mark.parametrize(("flags", "some", "none"), [
    (["-march=x86-64"], set(), {"sse4_2", "avx", "avx2", "fma"}),
    (["-march=haswell"], {"avx2", "fma", "f16c", "bmi2", "movbe", "popcnt"}, {"avx512f"}),
    (["-march=icelake-server"], {"avx512f", "avx512_vnni", "avx512_bitalg"}, {"avx512_bf16"}),
])
def test_what_is_needed_follows_from_the_flags(tmp_path: Path, flags: list[str], some: set[str], none: set[str]):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a C compiler is needed")
    text = tmp_path / "needed.i"
    subprocess.run([compiler, *flags, "-E", "-P", "-o", text, ROOT / "native" / "src" / "api" / "cpu_needed.c"], check=True)
    names = {name for name, macro in re.findall(r'"(\w+)", "(\w+)"', text.read_text()) if not macro.startswith("_")}
    assert some <= names and not none & names


def test_a_build_for_another_processor_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu, "needed", lambda: ("sse3", "avx1024"))
    monkeypatch.setattr(cpu, "lacking", lambda names: tuple(name for name in names if name == "avx1024"))
    with pytest.raises(NativeError, match=r"compiled for a processor with avx1024, which this one \(.*\) does not have") as error:
        cpu.check()
    assert error.value.exit_code == EXIT_LIBRARY


def test_the_check_comes_before_any_library():
    program = """
import sys
from edgekv.common.errors import NativeError
import edgekv._native._cpu as compiled  # imports the package, which asks
"""
    names = "[line.split()[-1] for line in open('/proc/self/maps') if 'libggml' in line or 'libllama' in line]"
    if not Path("/proc/self/maps").exists():
        pytest.skip("/proc/self/maps is Linux's")
    done = subprocess.run([sys.executable, "-c", program + f"print({names})"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
KERNELS = {"avx2": {"avx2", "fma", "f16c"}, "avxvnni": {"avx2", "fma", "f16c", "avx_vnni"}, "avx512": AVX512,
           "avx512vnni": AVX512 | {"avx512_vnni"}, "avx512bf16": AVX512 | {"avx512_bf16"}, "amx": AVX512 | {"amx_tile", "amx_bf16"}}
"""What kernels of a name need."""
SOURCES = ROOT / "native" / "src"


@pytest.mark.skipif(not X86, reason="instruction sets of x86-64")
@native_build.needs()
@pytest.mark.parametrize("kind", ["native", "all"])
def test_a_build_for_one_processor_has_the_kernels_that_serve_on_it(tmp_path: Path, kind: str):
    host = ROOT / "native" / "tests" / "host"
    configure = native_build.configure(host, tmp_path, f"-DEDGEKV_CPU={kind}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
    subprocess.run(configure, check=True, capture_output=True)
    files = [Path(each["file"]).stem for each in json.loads((tmp_path / "compile_commands.json").read_text())]
    found = {name for name in KERNELS for file in files if re.fullmatch(f"(attend|prompt|products)_{name}", file)}
    can = {name for name, needs in KERNELS.items() if kind == "all" or needs <= linux_flags()}
    better = {"avx2": "avx512vnni", "avxvnni": "avx512"} if kind == "native" else {}
    assert found == {name for name in can if better.get(name) not in can}
    for plain, variant in (("avx2", "avxvnni"), ("avx512", "avx512vnni")):
        if variant in found:
            assert ({f"attend_{plain}", f"sketch_{plain}"} <= set(files)) == (kind == "all"), "the variant serves in their place"


@pytest.mark.skipif(not X86 or shutil.which("nm") is None, reason="instruction sets of x86-64, as nm shows them")
@native_build.needs()
@pytest.mark.parametrize("names", ["portable", "portable avx2", "portable avx2 avx512 avx512vnni"])
def test_kernels_that_are_not_built_are_neither_linked_nor_chosen(tmp_path: Path, names: str):
    """Without optimisation, which could hide that something asks for them."""
    compiler = [native_build.compiler(), "-std=c++17", "-O0", f"-I{SOURCES}", f'-DEDGEKV_KERNELS=" {names} "']
    asked = set()
    for source in ("decode/attend", "matmul/products", "prefill/prompt", "select/sample", "sketch/sketch"):
        made = tmp_path / f"{Path(source).name}.o"
        subprocess.run([*compiler, "-c", "-o", made, SOURCES / "kernels" / f"{source}.cpp"], check=True)
        symbols = subprocess.run(["nm", "-C", "-u", made], check=True, capture_output=True, text=True).stdout
        asked |= {name.lower() for name in re.findall(r"edgekv::k(?:Attend|Products|Prompt|Sample|Sketch)(\w+)", symbols)}
    assert asked == set(names.split())

    here = [SOURCES / "kernels" / name for name in ("isa_here.cpp", "isa.cpp", "simd/tiles.cpp")]
    subprocess.run([*compiler, "-o", tmp_path / "isa_here", *here], check=True)
    listed = subprocess.run([tmp_path / "isa_here"], check=True, capture_output=True, text=True).stdout.split(";")
    assert {name for name in listed if name in ("avx2", "avx512", "avx512bf16", "amx")} <= set(names.split())
