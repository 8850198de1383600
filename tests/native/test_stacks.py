"""A token under a grammar: stacks as lists say the same as llama.cpp's whole ones, and cost a sum of depth and characters. Words that trigger it."""

import subprocess
from pathlib import Path

from support.native_build import needs, program

from edgekv import _native


@needs()
def test_stacks(upstream: Path, tmp_path: Path):
    (tmp_path / "llama.cpp").symlink_to(upstream)
    libraries = _native.lib_dir()
    made = program(tmp_path, "stacks", ["checkout/tests/native/stacks.cpp"], *(f"-Illama.cpp/{name}" for name in ("src", "include", "ggml/include")),
                   links=(f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined", "-lllama"))
    done = subprocess.run([made], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
