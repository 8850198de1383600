"""Run the device programs on their kernels' PTX, by a simulator that is not ours: a check before a release, on a machine that needs no GPU.

    python native/tests/ptx --simulator SOURCE                   every program with three seeds, into results.csv
    python native/tests/ptx --simulator SOURCE --program sight   one of them
    python native/tests/ptx --simulator SOURCE --few             a few cases of each kind

SOURCE is a clone of the simulator, a folder or what else git clones; README.md names it. nvcc is found as by native/cuda/compile_check.py.

Exit status: 0 all passed; 1 a check failed, something was reported, or a source does not compile; 2 the arguments,
or a tool that is missing; 5 there is no nvcc.
"""

import argparse
import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[1]
sys.path.insert(0, str(NATIVE / "cuda"))

import compile_check  # noqa: E402

COMMIT = "667834cf"
PATCH = HERE / "gpgpu-sim.patch"
# The simulator's headers want CUDA 11's textures; only headers are read.
CUDA_11 = ("nvidia-cuda-runtime-cu11==11.8.89", "nvidia-cuda-nvcc-cu11==11.8.89")
PROGRAMS = {re.sub(r"test_|_device", "", path.stem): path
            for path in sorted((HERE.parent / "device").glob("test_*.cpp")) if "emulator" not in path.stem}
FIELDS = ("program", "cases", "seed", "checks", "of", "failures", "reports", "launches", "instructions", "seconds", "ended", "hours")
"""of: checks of the whole program; hours: of processor time that it would take at this pace, where it was cut."""


def run(*command: str | Path, folder: Path | None = None) -> str:
    """What `command` prints. Ends the program with what it said if it fails."""
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))[:300]}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


# ---- building ----------------------------------------------------------------------------------------------------------------


def simulator_objects(work: Path, source: str, jobs: int) -> tuple[list[Path], list[str]]:
    """The patched simulator's objects, and their flags. A network and power are left out, and what models time is compiled as fast as can be."""
    root, out, headers = work / "simulator", work / "objects", work / "cuda11"
    src, parser = root / "src", root / "src" / "cuda-sim"
    if not headers.exists():
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", headers, *CUDA_11)
    flags = ["-w", "-fPIC", "-std=gnu++14", "-frounding-math", "-DCUDART_VERSION=11000", "-DTRACING_ON=1", "-DYYDEBUG"]
    flags += [f"-I{folder}" for folder in (HERE, src, parser, src / "gpgpu-sim", out, *headers.glob("nvidia/cuda_*/include"))]
    digest = hashlib.sha256(PATCH.read_bytes() + (HERE / "registers.h").read_bytes() + (HERE / "engine.h").read_bytes()).hexdigest()
    stamp = out / "made_from"
    if stamp.exists() and stamp.read_text() == digest:
        return sorted(out.glob("*.o")), flags
    for folder in (root, out):
        shutil.rmtree(folder, ignore_errors=True)
    run("git", "clone", "--quiet", "--no-checkout", source, root)
    run("git", "checkout", "--quiet", COMMIT, folder=root)
    run("git", "apply", PATCH, folder=root)

    out.mkdir(parents=True)
    for name in ("ptx", "ptxinfo"):
        run("bison", f"--name-prefix={name}_", "-d", parser / f"{name}.y", f"--file-prefix={out / name}")
        run("flex", f"--outfile={out}/lex.{name}_.c", parser / f"{name}.l")
    tokens = re.findall(r"^ +(\w+) = \d+", (out / "ptx.tab.h").read_text(), re.MULTILINE)
    (out / "ptx_parser_decode.def").write_text("".join(f'DEF({name},"{name}")\n' for name in tokens if not name.startswith("YY")))
    bodies = re.findall(r"^.*_impl\([^{]*", (parser / "instructions.cc").read_text(), re.MULTILINE)
    (out / "instructions.h").write_text('#pragma once\n#include "ptx_ir.h"\n#include "engine.h"\n' + "".join(f"{body.rstrip()};\n" for body in bodies))
    (out / "detailed_version").write_text('const char * g_gpgpusim_build_string = "";\n')

    fast = [*parser.rglob("*.cc"), src / "abstract_hardware_model.cc", *out.glob("*.c")]  # all that a kernel's instructions run through
    slow = [path for path in (*src.glob("*.cc"), *(src / "gpgpu-sim").glob("*.cc")) if path not in fast and path.name != "power_interface.cc"]
    slow += [src / "intersim2/module.cpp", src / "intersim2/stats.cpp"]  # of its network only what a network without a model names
    compile_all([("-O2", path) for path in fast] + [("-O0", path) for path in slow], flags, out, jobs)
    stamp.write_text(digest)
    return sorted(out.glob("*.o")), flags


def compile_all(sources: Iterable[tuple[str, Path]], flags: list[str], out: Path, jobs: int) -> None:
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda each: run("g++", *flags, each[0], "-x", "c++", "-c", each[1], "-o", out / f"{each[1].name}.o"), sources))


def runtime_library(work: Path, source: str, nvcc: Path, jobs: int) -> None:
    """libptx.so: CUDA's runtime over the simulator."""
    objects, flags = simulator_objects(work, source, jobs)
    out = work / "runtime"
    out.mkdir(exist_ok=True)
    compile_all([("-O2", HERE / "engine.cpp"), ("-O2", HERE / "instructions.cpp")], [*flags, "-fno-access-control"], out, jobs)
    run(nvcc, "-x", "c++", "-Xcompiler", "-fPIC", "-O2", "-std=c++17", "-c", HERE / "runtime.cpp", "-o", out / "runtime.cpp.o")
    run("g++", "-shared", "-o", work / "libptx.so", *objects, *out.glob("*.o"), "-lm", "-lz", "-pthread")
    options = (work / "simulator/configs/tested-cfgs/SM7_QV100/gpgpusim.config").read_text()
    (work / "gpgpusim.config").write_text(re.sub(r"(-gpgpu_n_(clusters|mem)) \d+", r"\1 4", options))


def programs(work: Path, names: list[str], nvcc: Path, jobs: int, few: bool) -> None:
    """Each program in `work`, from unchanged sources, with PTX for compute capability 8.0."""
    run("cmake", "-S", HERE.parent / "device", "-B", work / "host", f"-DFEW={'ON' if few else 'OFF'}")
    run("cmake", "--build", work / "host", "--target", "host_kernels", f"-j{jobs}")
    out = work / "programs"
    out.mkdir(exist_ok=True)
    flags = ["-std=c++17", "-O3", "-arch=compute_80", "-cudart", "none", "-no-compress", "-x", "cu", "-c"]
    includes = [f"-I{folder}" for folder in (NATIVE, NATIVE / "include", NATIVE / "src", HERE.parent / "cases")]
    flags += [*includes, *(["-DEDGEKV_FEW"] if few else [])]
    run("g++", "-std=c++17", *includes, "-c", HERE / "checks.cpp", "-o", out / "checks.cpp.o")

    def compiled(source: Path) -> Path:
        made = out / f"{source.name}.o"
        run(nvcc, *flags, source, "-o", made)
        return made

    with ThreadPoolExecutor(jobs) as pool:
        runtime = list(pool.map(compiled, sorted((NATIVE / "cuda/runtime").glob("*.cu"))))
        engine = sorted((NATIVE / "cuda/engine").glob("*.cu")) + sorted((NATIVE / "cuda/kernels").glob("*.cu"))
        kernels = list(pool.map(compiled, engine)) if "engine" in names else []
        for name, made in zip(names, list(pool.map(compiled, [PROGRAMS[name] for name in names]))):
            run("g++", made, out / "checks.cpp.o", *runtime, *(kernels if name == "engine" else ()), work / "host/libhost_kernels.a",
                f"-L{work}", "-lptx", f"-Wl,-rpath,{work}", "-pthread", "-o", work / name)


# ---- running -----------------------------------------------------------------------------------------------------------------


def checks_of(work: Path, name: str) -> int:
    """Of the whole program, as the emulated device counts them."""
    run("cmake", "--build", work / "host", "--target", PROGRAMS[name].stem)
    found = re.search(r"^(\d+) checks, ok$", run(work / "host" / PROGRAMS[name].stem), re.MULTILINE)
    assert found, f"{name} does not tell its checks"
    return int(found[1])


def row(work: Path, name: str, seed: int, minutes: float, cases: str) -> dict:
    """One run of a program, which is cut behind the launch that comes after so many minutes of processor time."""
    variables = {"EDGEKV_PTX_SEED": str(seed), "EDGEKV_PTX_SECONDS": str(60 * minutes)}
    done = subprocess.run([work / name], cwd=work, env=os.environ | variables, capture_output=True, text=True)
    print(f"{name}, seed {seed}: {done.stdout[-3000:]}{done.stderr[-3000:]}", flush=True)
    checks = re.search(r"PTX CHECKS: (\d+), (\d+) failures", done.stderr)
    total = re.search(r"PTX TOTAL: (\d+) launches, (\d+) instructions of threads, (\d+) reports, ([\d.]+) s", done.stderr)
    early = re.search(r"PTX (FAULT|HANG|CUT)", done.stderr)
    n, failures = checks.groups() if checks else ("", str(done.stdout.count("FAIL ")))
    launches, instructions, reports, seconds = total.groups() if total else ("",) * 4
    ended = early[1].lower() if early else f"exit status {done.returncode}" if done.returncode else "whole"
    return dict(zip(FIELDS, (name, cases, seed, n, "", failures, reports, launches, instructions, seconds, ended, "")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulator", required=True, metavar="SOURCE", help="a clone of the simulator")
    parser.add_argument("--program", action="append", choices=list(PROGRAMS), help="may be given several times; without it all run")
    parser.add_argument("--seeds", type=int, default=3, help="how many orders of blocks and warps; %(default)s by default")
    parser.add_argument("--few", action="store_true", help="fewer cases, some of each kind")
    parser.add_argument("--minutes", type=float, default=10, help="of processor time, then a run is cut; %(default)g by default")
    parser.add_argument("--work", type=Path, default=Path("build/ptx"), help="where everything is built; %(default)s by default")
    parser.add_argument("--install", type=Path, metavar="DIR", help="fetch the CUDA toolkit from PyPI into DIR if there is none")
    parser.add_argument("--table", type=Path, help="a CSV file to write; its rows of other programs and cases stay")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="files and runs at a time")
    options = parser.parse_args()
    if missing := [tool for tool in ("git", "g++", "flex", "bison", "cmake") if shutil.which(tool) is None]:
        parser.error(f"{', '.join(missing)}: not installed (README.md has the list)")
    names, work, cases = options.program or list(PROGRAMS), options.work.resolve(), "few" if options.few else "all"
    try:
        toolkit = compile_check.find_toolkit(options.install, with_cublas=False)
    except compile_check.CannotCheckError as error:
        print(error, file=sys.stderr)
        return 5
    work.mkdir(parents=True, exist_ok=True)
    runtime_library(work, options.simulator, toolkit.nvcc, options.jobs)
    programs(work, names, toolkit.nvcc, options.jobs, options.few)
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda each: row(work, *each, options.minutes, cases), [(name, seed) for name in names for seed in range(1, options.seeds + 1)]))
    for name in {each["program"] for each in rows if each["ended"] == "cut"}:
        of = checks_of(work, name)
        for each in rows:
            if each["program"] == name and each["ended"] == "cut" and each["checks"] != "0":
                each |= {"of": of, "hours": f"{float(each['seconds']) / 3600 * of / int(each['checks']):.1f}"}
    if options.table:
        kept = list(csv.DictReader(options.table.open())) if options.table.exists() else []
        with options.table.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            kept = [line for line in kept if line["program"] not in names or line["cases"] != cases]
            writer.writerows(sorted(kept + rows, key=lambda line: (line["program"], line["cases"], int(line["seed"]))))
    for each in rows:
        print(*(each[field] for field in FIELDS), sep="\t")
    return 0 if all(each["ended"] in ("whole", "cut") and each["failures"] == "0" and each["reports"] == "0" for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
