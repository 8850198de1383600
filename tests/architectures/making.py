"""Tiny models of every architecture: a program around upstream's own test (tiny_models.cpp), linked to the libraries of this installation."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COMPILERS = ("c++", "g++", "clang++")


class NotMadeError(Exception):
    """There is no compiler, or no source; one sentence."""


@dataclass(frozen=True)
class Maker:
    """The compiled program."""

    program: Path
    libraries: Path

    def architectures(self) -> dict[str, bool]:
        """Whether there is a model of it, for every architecture that the pinned source names, in its order."""
        lines = self._run("list").stdout.splitlines()
        return {name: kind != "-" for name, kind in (line.split() for line in lines)}

    def write(self, architecture: str, path: Path, keys: Sequence[str] = ()) -> None:
        """keys: others of the architecture, as `tiny_models` takes them. Raises NotMadeError where llama.cpp makes no model of them."""
        self._run("write", architecture, str(path), *keys)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess:
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "EDGEKV_TINY_MODELS_LIBRARIES": str(self.libraries), "GGML_NO_BACKTRACE": "1"})
        if done.returncode != 0:
            raise NotMadeError(f"tiny_models {' '.join(arguments)} left with {done.returncode}: {done.stderr.strip()}")
        return done


def compile_maker(folder: Path) -> Maker:
    """Compile the program in an empty folder. Raises NotMadeError where there is no compiler or no source."""
    from edgekv import _native

    compiler = next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        raise NotMadeError(f"no C++ compiler ({', '.join(COMPILERS)})")
    source, program = folder / "llama.cpp", folder / "tiny_models"
    _check([sys.executable, str(ROOT / "patches" / "apply.py"), "--prepare", str(source)])
    libraries = next(Path(path).parent for name, path in _native.info()["libraries"].items() if name.startswith("libllama."))
    include = [f"-I{source / name}" for name in ("tests", "include", "common", "ggml/include", "vendor", "src")]
    _check([compiler, "-std=c++17", "-O1", "-w", *include, f"-I{ROOT / 'native' / 'llama'}", str(HERE / "tiny_models.cpp"), "-o", str(program),
            f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lllama-common", "-lllama", "-lggml", "-lggml-base"])
    return Maker(program, libraries)


def _check(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotMadeError(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
