"""Tiny models of every architecture: a program around upstream's own test (tiny_models.cpp), linked to the libraries of this installation."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.native_build import COMPILERS, compiler, prepare, program


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


def compile_maker(folder: Path, upstream: Path | None = None) -> Maker:
    """Compile the program in an empty folder. upstream: the patched source, where it is there. Raises NotMadeError where there is no compiler or no
    source."""
    from edgekv import _native

    if compiler() is None:
        raise NotMadeError(f"no C++ compiler ({', '.join(COMPILERS)}), or no CMake")
    libraries = next(Path(path).parent for name, path in _native.info()["libraries"].items() if name.startswith("libllama."))
    include = [f"-Illama.cpp/{name}" for name in ("tests", "include", "common", "ggml/include", "vendor", "src")]
    try:
        (folder / "llama.cpp").symlink_to(upstream or prepare(folder / "source"))
        made = program(folder, "tiny_models", ["checkout/tests/architectures/tiny_models.cpp"], "-w", *include, "-Icheckout/native/llama",
                       links=(f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lllama-common", "-lllama", "-lggml", "-lggml-base"))
    except subprocess.CalledProcessError as error:
        raise NotMadeError(f"{error.cmd[0]} failed: {(error.stderr or error.stdout).strip()[-2000:]}") from None
    return Maker(made, libraries)
