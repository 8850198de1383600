"""The compile check of CUDA files, with a program in nvcc's place: what it compiles again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).resolve().parents[2] / "native" / "cuda" / "compile_check.py"

NVCC = """#!/bin/sh
for word; do
    case "$before" in -c) file=$word ;; -MF) dependencies=$word ;; esac
    before=$word
done
case "$file" in */native/*) used=${file%/native/*}/native/used.h ;; *) used=${file%/llama.cpp/*}/native/llama/site.h ;; esac
[ -z "$file" ] || echo "object: $file $used" > "$dependencies"
echo "release 13.0"
"""


def compiled(tree: Path) -> list[str]:
    """The files of `tree` that are compiled now, though all trees share a cache."""
    nvcc = tree.parent / "nvcc"
    nvcc.write_text(NVCC)
    nvcc.chmod(0o755)
    command = [sys.executable, tree / "native" / "cuda" / CHECK.name, "--ggml", tree / "llama.cpp", "--cache", tree.parent / "cache"]
    done = subprocess.run(command, env=os.environ | {"CUDACXX": str(nvcc)}, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith(" s\n"), done.stdout + done.stderr
    return [line.split()[0] for line in done.stdout.splitlines() if ".cu " in line and "(before)" not in line]


def test_what_another_checkout_compiled_is_compiled_again_where_it_differs(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for name in ("native/cuda/ours.cu", "native/used.h", "native/llama/site.h", "llama.cpp/ggml/src/ggml-cuda/ggml-cuda.cu"):
        path = first / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    shutil.copy(CHECK, first / "native" / "cuda")
    assert compiled(first) == ["ggml-cuda.cu", "ours.cu"]
    shutil.copytree(first, second)
    assert compiled(second) == []
    (second / "native" / "used.h").write_text("// changed")
    assert compiled(second) == ["ours.cu"]
    (second / "native" / "llama" / "site.h").write_text("// changed")
    assert compiled(second) == ["ggml-cuda.cu"]
