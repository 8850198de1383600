"""Compile every CUDA file for every architecture that we promise, on a machine that needs no GPU.

    python native/cuda/compile_check.py                      native/cuda/**/*.cu
    python native/cuda/compile_check.py --ggml DIR           also ggml-cuda.cu of a llama.cpp that patches/apply.py prepared, and cublas.cpp
    python native/cuda/compile_check.py --install DIR        fetch what is missing here from PyPI into DIR first

The compiler is nvcc from CUDACXX, from PATH, or from DIR; ggml-cuda.cu and cublas.cpp also need the headers of cuBLAS. What was compiled before
from the same bytes with the same compiler and flags, in this checkout or another, is not compiled again (--cache).

Exit status: 0 all compiled; 1 a file does not compile; 5 there is no nvcc, or no cuBLAS header, to compile with.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent
ARCHITECTURES = "75,80,86,89,90,120"
# One release of the toolkit, so that its parts fit each other; cuBLAS is only read for its headers.
RELEASE = "13.0.*"
TOOLKIT = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-nvvm", "nvidia-cuda-cccl")
CUBLAS = ("nvidia-cublas",)


class CannotCheckError(Exception):
    """No compiler or headers; the message is one sentence."""


@dataclasses.dataclass
class Toolkit:
    nvcc: Path
    includes: list[Path]  # besides the compiler's own
    version: str


@dataclasses.dataclass
class Result:
    file: Path
    seconds: float = 0.0
    registers: int = 0  # of the kernel that uses most
    spilled_bytes: int = 0  # stores and loads, over all kernels and architectures
    kernels: int = 0  # of one architecture
    message: str = ""  # nvcc's words, if it failed
    warnings: str = ""
    cached: bool = False


# ---- the compiler ------------------------------------------------------------------------------------------------------------


def installed(names: tuple[str, ...], folder: Path) -> Path:
    """The root (bin, include, ...) of the packages `names` below `folder`; pip installs them if there is no such folder. Raises CannotCheckError.

    Each set needs a folder of its own: pip adds nothing to a package folder that its target already has.
    """
    if not folder.is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--target", str(folder), *(f"{name}=={RELEASE}" for name in names)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            wanted = ", ".join(names)
            raise CannotCheckError(f"{wanted} could not be installed from PyPI ({last}): put the CUDA toolkit on PATH instead")
    roots = sorted(folder.glob("nvidia/cu*/"))
    if not roots:
        raise CannotCheckError(f"{folder} holds no CUDA packages: give --install an empty folder")
    return roots[0]


def find_toolkit(folder: Path | None, with_cublas: bool) -> Toolkit:
    named = os.environ.get("CUDACXX")
    found = shutil.which(named or "nvcc")
    if named and not found:
        raise CannotCheckError(f"CUDACXX={named} is no program")
    nvcc = Path(found) if found else None
    if nvcc is None and folder is not None:
        nvcc = installed(TOOLKIT, folder / "toolkit") / "bin" / "nvcc"
    if nvcc is None:
        raise CannotCheckError("there is no nvcc on PATH: install the CUDA toolkit, or fetch it from PyPI with --install DIR")

    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout.strip().splitlines()[-1]
    toolkit = Toolkit(nvcc, [], version)
    if with_cublas and not includes_header(toolkit, "cublas_v2.h"):
        if folder is None:
            raise CannotCheckError("ggml-cuda.cu needs the headers of cuBLAS: fetch them from PyPI with --install DIR")
        toolkit.includes.append(installed(CUBLAS, folder / "cublas") / "include")
    return toolkit


def includes_header(toolkit: Toolkit, header: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.cu"
        probe.write_text(f"#include <{header}>\n")
        return subprocess.run([toolkit.nvcc, "-E", probe], capture_output=True).returncode == 0


# ---- one file ----------------------------------------------------------------------------------------------------------------


def flags(file: Path, architectures: list[str], toolkit: Toolkit, ggml: Path | None) -> list[str]:
    """The flags that the build sets."""
    out = ["-std=c++17", "-O3", "-Xptxas", "-v"]
    if ggml is not None and ggml in file.parents:
        # upstream compiles 12X as architecture-specific code
        architectures = [arch + "a" if re.fullmatch(r"12\d", arch) else arch for arch in architectures]
        out += ["-use_fast_math", "-extended-lambda", "-Xcompiler", "-Wno-pedantic"]
        out += ["-DGGML_CUDA_USE_GRAPHS", "-DGGML_SCHED_MAX_COPIES=4"]
        out += [f"-I{ggml / 'ggml' / part}" for part in ("include", "src")] + [f"-I{NATIVE / 'llama'}"]
    else:
        out += ["-Xcompiler", "-Wall,-Wextra", "--Werror", "cross-execution-space-call"]
        out += [f"-I{NATIVE / part}" for part in (".", "src", "include")]
    for arch in architectures:
        out += ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
    return out + [f"-I{folder}" for folder in toolkit.includes]


def read_ptxas(text: str, result: Result) -> None:
    """Adds the figures of `ptxas -v` to `result`."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        if entry := re.search(r"Compiling entry function '.*' for '(\w+)'", line):
            counts[entry[1]] = counts.get(entry[1], 0) + 1
        if used := re.search(r"Used (\d+) registers", line):
            result.registers = max(result.registers, int(used[1]))
        if spilled := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            result.spilled_bytes += int(spilled[1]) + int(spilled[2])
    result.kernels = max(counts.values(), default=0)
    warnings = (line for line in text.splitlines() if "warning" in line and "ptxas info" not in line)
    result.warnings = "\n".join(dict.fromkeys(warnings))  # once, not again for each architecture


def compile_file(file: Path, roots: dict[str, Path], command: list[str], key: str, cache: Path) -> Result:
    """Compiles `file`, or returns the cached result. Files below `roots` are compared by name and content, all others by the compiler's version."""
    stamp = cache / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
    if known := fresh(stamp, roots):
        return Result(file=file, cached=True, **known)

    with tempfile.TemporaryDirectory() as folder:
        output, dependencies = Path(folder) / "object.o", Path(folder) / "object.d"
        begin = time.monotonic()
        command = [*command, "-c", str(file), "-o", str(output), "-MD", "-MF", str(dependencies)]
        done = subprocess.run(command, capture_output=True, text=True)
        result = Result(file=file, seconds=time.monotonic() - begin)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).splitlines()
            result.message = "\n".join(line for line in said if "ptxas info" not in line and "bytes stack frame" not in line)
            return result
        read_ptxas(done.stdout + done.stderr, result)
        words = dependencies.read_text().replace("\\\n", " ").split(":", 1)[1].split()

    paths = {Path(word).resolve() for word in words}
    ours = {f"{name}/{path.relative_to(root)}": digest(path) for name, root in roots.items() for path in paths if root in path.parents}
    known = {name: getattr(result, name) for name in ("seconds", "registers", "spilled_bytes", "kernels", "warnings")}
    cache.mkdir(parents=True, exist_ok=True)
    stamp.write_text(json.dumps({"result": known, "files": ours}))
    return result


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fresh(stamp: Path, roots: dict[str, Path]) -> dict | None:
    """An earlier result for the same bytes; None without one."""
    try:
        kept = json.loads(stamp.read_text())
        named = (name.split("/", 1) + [value] for name, value in kept["files"].items())
        if all(digest(roots[root] / name) == value for root, name, value in named):
            return kept["result"]
    except (OSError, ValueError, KeyError):
        pass  # never compiled, or not with these files
    return None


# ---- all files ---------------------------------------------------------------------------------------------------------------


def check(options: argparse.Namespace) -> list[Result]:
    architectures = options.arch.split(",")
    if bad := [arch for arch in architectures if not re.fullmatch(r"\d{2,3}[af]?", arch)]:
        raise SystemExit(f"--arch {bad[0]!r} is no architecture; give numbers like {ARCHITECTURES}")
    ggml = options.ggml.resolve() if options.ggml else None
    files = [] if options.only_ggml else sorted(HERE.rglob("*.cu"))
    if ggml is not None:
        files.insert(0, ggml / "ggml" / "src" / "ggml-cuda" / "ggml-cuda.cu")  # it takes longest
        if not files[0].exists():
            raise SystemExit(f"--ggml: there is no {files[0]}; prepare a tree with patches/apply.py --prepare DIR")
        files += [] if options.only_ggml else sorted(HERE.glob("*.cpp"))
    toolkit = find_toolkit(options.install, with_cublas=ggml is not None)
    print(f"{toolkit.nvcc}: {toolkit.version}", flush=True)
    roots = {"native": NATIVE} | ({"ggml": ggml} if ggml is not None else {})

    def run(file: Path) -> Result:
        given = flags(file, architectures, toolkit, ggml)
        key = " ".join([toolkit.version, str(file), *given])
        for name, root in (roots | {f"toolkit {folder.name}": folder for folder in toolkit.includes}).items():
            key = key.replace(str(root), name)
        return compile_file(file, roots, [str(toolkit.nvcc), *given], key, options.cache)

    with ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(run, files))


def print_table(results: list[Result], architectures: str) -> None:
    rows = [("file", "architectures", "seconds", "kernels", "most registers", "spilled bytes")]
    for result in results:
        seconds = f"{result.seconds:.1f}" + (" (before)" if result.cached else "")
        figures = (str(result.kernels), str(result.registers), str(result.spilled_bytes))
        rows.append((result.file.name, architectures, seconds, *(("failed", "", "") if result.message else figures)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default=ARCHITECTURES, help="compute capabilities, %(default)s by default")
    parser.add_argument("--ggml", type=Path, metavar="DIR", help="a prepared llama.cpp, whose ggml-cuda.cu is compiled as well")
    parser.add_argument("--only-ggml", action="store_true", help="nothing else than that")
    parser.add_argument("--install", type=Path, metavar="DIR", help="fetch what is missing here from PyPI into DIR")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="files at a time")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = base / "edgekv" / "compile_check"
    parser.add_argument("--cache", type=Path, default=cache, help="where it is kept what compiled before")
    options = parser.parse_args()

    begin = time.monotonic()
    try:
        results = check(options)
    except CannotCheckError as error:
        print(error, file=sys.stderr)
        return 5
    for result in results:
        if result.message or result.warnings:
            print(f"\n{result.file.name}:\n{result.message or result.warnings}\n", file=sys.stderr)
    print_table(results, options.arch)
    failed = sum(bool(result.message) for result in results)
    seconds = time.monotonic() - begin
    print(f"{failed} of {len(results)} files do not compile" if failed else f"{len(results)} files compiled in {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
