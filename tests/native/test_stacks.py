"""A token under a grammar: stacks as lists say the same as llama.cpp's whole ones, and cost a sum of depth and characters. Words that trigger it."""

import subprocess
import sys
from pathlib import Path

from support.native_build import compiler, needs

from edgekv import _native

ROOT = Path(__file__).resolve().parents[2]


@needs()
def test_stacks(tmp_path: Path):
    upstream, program = tmp_path / "llama.cpp", tmp_path / "stacks"
    subprocess.run([sys.executable, ROOT / "patches" / "apply.py", "--prepare", upstream], check=True, capture_output=True)
    subprocess.run([compiler(), "-std=c++17", "-O1", *(f"-I{upstream / name}" for name in ("src", "include", "ggml/include")),
                    Path(__file__).with_name("stacks.cpp"), f"-L{_native.lib_dir()}", f"-Wl,-rpath,{_native.lib_dir()}",
                    "-Wl,--allow-shlib-undefined", "-lllama", "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
