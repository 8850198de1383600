"""What llama.cpp tells the tile unit of CPUs with AMX, as this machine's compiler compiles it. Needs no AMX: the object code that would
load the configuration keeps it for us instead."""

import platform
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SOURCE = "ggml/src/ggml-cpu/amx/mmq.cpp"
ROWS = (8, 8, 16, 16, 16, 16, 16, 16)
ROW_BYTES = (64, 64, 32, 32, 64, 64, 64, 64)

_PROGRAM = """
#include <immintrin.h>
#include <cstdint>
#include <cstdio>

{config}
extern "C" {{ unsigned char loaded[64]; }}
{init}
// compilers treat main, which runs once, less harshly
__attribute__((noinline)) void configure() {{ ggml_tile_config_init(); }}
int main() {{
    configure();
    return std::fwrite(loaded, 1, sizeof(loaded), stdout) == sizeof(loaded) ? 0 : 1;
}}
"""
# in place of `ldtilecfg MEMORY`: what it would read, kept in `loaded`
_KEEP = "\n".join(["leaq {memory}, %r11", *(f"movups {at}(%r11), %xmm15\nmovups %xmm15, loaded+{at}(%rip)" for at in (0, 16, 32, 48))])


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only x86-64 has AMX")
@pytest.mark.parametrize("level", ["-O2", "-O3"])
def test_the_tile_unit_gets_its_shapes(upstream: Path, tmp_path: Path, level: str):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("a C++ compiler is needed")
    text = (upstream / SOURCE).read_text()
    config = re.search(r"^struct tile_config_t\s*\{.*?^\};", text, re.S | re.M)[0]
    init = re.search(r"^inline void ggml_tile_config_init\(void\) \{.*?^\}", text, re.S | re.M)[0]
    (tmp_path / "tiles.cpp").write_text(_PROGRAM.format(config=config, init=init))

    assembly, program = tmp_path / "tiles.s", tmp_path / "tiles"
    subprocess.run([compiler, level, "-mamx-tile", "-S", "-o", assembly, tmp_path / "tiles.cpp"], check=True)
    kept, n_loads = re.subn(r"\bldtilecfg\s+(\S+)", lambda load: _KEEP.format(memory=load[1]), assembly.read_text())
    assert n_loads == 1
    assembly.write_text(kept)
    subprocess.run([compiler, "-o", program, assembly], check=True)

    loaded = subprocess.run([program], capture_output=True, check=True).stdout
    assert loaded[:2] == bytes([1, 0])  # palette 1, from row 0
    assert struct.unpack_from("<8H", loaded, 16) == ROW_BYTES
    assert struct.unpack_from("<8B", loaded, 48) == ROWS
