"""Stage build: an environment of its own, llama.cpp's source, native code for the card found, and the package in that environment."""

import hashlib
import json
import os
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from . import parcels
from .session import Session
from .state import FAILED, OK
from .steps import Outcome, Step

PART = 15 << 20
"""The most bytes of one file that comes back; at most eight files come."""
MOST = 3 * PART


def steps(session: Session) -> list[Step]:
    """The steps that everything else needs."""
    packed = parcels.manifest(session.state) or {}
    key = _hash_of(json.dumps(packed.get("files", {})))
    return [Step("build", "environment", lambda s: _environment(session, s), 120, key=key),
            Step("build", "source", lambda s: _source(session, s), 60, key=key)]


def native_steps(session: Session, keep: bool) -> list[Step]:
    arch = session.card.arch if session.card else 0
    key = f"{session.sources} {session.device} {arch}"
    made = [
        Step("build", "native", lambda s: _native(session, s), 560, least_s=60,
             needs=("build/environment", "build/source"), key=key, resumes=True),
        Step("build", "check", lambda s: _check(session, s), 90, needs=("build/native",), key=key)]
    if keep:
        made.append(Step("build", "keep", lambda s: _keep(session, s), 120, needs=("build/native",),
                         key=f"{session.build_sources} {arch}"))
    return made


def _hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _environment(session: Session, seconds: float) -> Outcome:
    """Make an environment that sees the packages of this Python, also where this Python runs in a virtual environment."""
    folder = session.state.folder / "venv"
    wheels = sorted((parcels.part(session.state, parcels.BASE, "wheels") or Path("none")).glob("*.whl"))
    if not wheels:
        return Outcome(FAILED, f"no packages came along; carry {parcels.FOLDER}/{parcels.BASE} (`tests/gpu_command pack` makes it)")
    wrong = [wheel.name for wheel in wheels if "-cp3" in wheel.name and "abi3" not in wheel.name
             and f"-cp{sys.version_info[0]}{sys.version_info[1]}-" not in wheel.name]
    if wrong:
        return Outcome(FAILED, f"{wrong[0]} is for another Python than {sys.version.split()[0]}; pack --python "
                               f"{sys.version_info[0]}.{sys.version_info[1]}")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True, with_pip=False)
    inside = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    parents = [path for path in dict.fromkeys([*site.getsitepackages(), *sys.path]) if Path(path).name.endswith("-packages")]
    (inside / "_parents.pth").write_text("".join(f"{path}\n" for path in parents if Path(path).is_dir()))
    done = session.execute("environment", [session.python, "-m", "pip", "--version"], 30, quiet=True)
    if not done.ok:
        done = session.execute("environment", [session.python, "-m", "ensurepip"], 60, quiet=True)
        if not done.ok:
            return Outcome(FAILED, "this Python has neither pip nor ensurepip")
    command = [session.python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", *wheels]
    done = session.execute("environment", command, seconds)
    return session.outcome("environment", done) if not done.ok else Outcome(OK, f"{len(wheels)} packages")


def _source(session: Session, seconds: float) -> Outcome:
    """Unpack llama.cpp. It came from the pinned sdist, whose hash was checked when it was packed."""
    archive, about = parcels.part(session.state, parcels.BASE, "llama.cpp.tar.xz"), parcels.manifest(session.state)
    if archive is None or about is None:
        return Outcome(FAILED, f"llama.cpp did not come along; carry {parcels.FOLDER}/{parcels.BASE}")
    if about["pin"] != parcels.pin(session.root):
        return Outcome(FAILED, "patches/UPSTREAM pins another llama.cpp than was packed; run `python tests/gpu_command pack` again")
    folder = session.state.folder / "llama.cpp"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    done = session.execute("source", ["tar", "-C", folder, "-xJf", archive], seconds)
    return session.outcome("source", done)


def _native(session: Session, seconds: float) -> Outcome:
    """`pip install` the checkout. Its build folder stays, so that compiled files stay compiled."""
    state = session.state
    _take_built(session)
    cmake: list[str] = []
    environment = session.environment(EDGEKV_LLAMA_SOURCE=str(state.folder / "llama.cpp"), EDGEKV_CUDA="off",
                                      CMAKE_BUILD_PARALLEL_LEVEL=str(session.n_cores), CMAKE_GENERATOR="Ninja")
    if session.device == "cuda":
        for note in session.toolkit.notes:
            session.say(f"  {note}")
        cmake += session.toolkit.cmake
        environment |= {"EDGEKV_CUDA": "on", "EDGEKV_CUDA_ARCHITECTURES": f"{session.arch}-real",
                        "CUDACXX": str(session.toolkit.nvcc), "CUDAToolkit_ROOT": str(session.toolkit.root)}
    cmake += _python_headers(session)
    environment["CMAKE_ARGS"] = shlex.join(cmake)
    command = [session.python, "-m", "pip", "install", "-v", "--no-index", "--no-build-isolation", "--no-deps", "--no-compile",
               "--force-reinstall", f"--config-settings=build-dir={state.folder / 'build'}", session.root]
    done = session.execute("native", command, seconds, environment)
    for command in _emulator(session) if done.ok else ():
        done = session.execute("emulator", command, seconds, environment)
        if not done.ok:
            return session.outcome("emulator", done)
    if done.ok:
        library = sorted(state.path("build", "x").parent.glob("**/libggml-cuda.so"))
        state.path("build.json").write_text(json.dumps({
            "seconds": round(done.seconds, 1), "cores": session.n_cores, "flags": cmake,
            "libggml_cuda_bytes": library[0].stat().st_size if library else None}))
        return Outcome(OK, f"{done.seconds:.0f} s on {session.n_cores} cores")
    return session.outcome("native", done)


def _emulator(session: Session) -> list[list[str | Path]]:
    """The commands that build the emulated device, in a rehearsal on it."""
    if session.device != "emulated":
        return []
    build = session.emulator.parent
    return [["cmake", "-S", session.root / "native" / "emulator", "-B", build],
            ["cmake", "--build", build, "--parallel", str(session.n_cores)]]


def _python_headers(session: Session) -> list[str]:
    """CMake's options for Python.h. A bare machine may lack it, and the headers that came along are of the same version."""
    if (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return []
    archive = parcels.part(session.state, parcels.BASE, "python-include.tar.xz")
    if archive is None:
        return []
    folder = session.state.path("python", "x").parent
    subprocess.run(["tar", "-C", str(folder), "-xJf", str(archive)], check=True)
    session.say("  Python.h is not installed here; using the one that came along")
    return [f"-DPython3_INCLUDE_DIR={next(folder.glob('python3*'))}"]


def _check(session: Session, seconds: float) -> Outcome:
    """Check that the installed package starts and sees the card."""
    done = session.execute("doctor", [session.python.parent / "edgekv", "doctor"], seconds / 2)
    for line in done.tail.splitlines():
        print(f"    {line}", flush=True)
    if not done.ok:
        return session.outcome("doctor", done)
    if session.device == "cpu":
        return Outcome(OK, "doctor found nothing missing")
    rates = session.state.path("rates.json")
    command = [session.python, session.root / "tests" / "gpu_command" / "rates.py", session.device, rates]
    done = session.execute("rates", command, seconds / 2)
    return session.outcome("rates", done)


# ---- a build folder that travels -----------------------------------------------------------------------------------------------


def _keep(session: Session, seconds: float) -> Outcome:
    """Pack ggml-cuda's objects and ninja's records as parts that can come back: they take most of a build's time, and the next machine
    compiles the rest alone."""
    session.out.mkdir(parents=True, exist_ok=True)
    for old in session.out.glob("built.tar.*"):
        old.unlink()
    folder, build = session.state.folder, session.state.folder / "build"
    names = session.state.path("built.txt")
    kept = [path for path in sorted(build.rglob("*")) if path.is_file() and _travels(path)]
    names.write_text("".join(f"{path.relative_to(folder)}\n" for path in kept))
    whole = session.state.path("built.tar.xz")
    # ninja compares times of files, to the nanosecond
    command = ["tar", "--format=posix", "-C", folder, "--use-compress-program=xz -6 -T0", "-cf", whole, "--files-from", names]
    done = session.execute("keep", command, seconds, quiet=True)
    if not done.ok:
        return session.outcome("keep", done)
    size = whole.stat().st_size
    if size > MOST:
        return Outcome(OK, f"{size / (1 << 20):.1f} MiB, more than travels beside the first parcel: not kept")
    with whole.open("rb") as file:
        for number in range(-(-size // PART)):
            (session.out / f"built.tar.{number:02d}").write_bytes(file.read(PART))
    whole.unlink()
    return Outcome(OK, f"{size / (1 << 20):.1f} MiB in built.tar.*; `python tests/gpu_command pack --built FOLDER` takes them along")


def _travels(path: Path) -> bool:
    if path.suffix == ".o":
        return "ggml-cuda.dir" in path.parts
    return path.suffix not in (".so", ".a", ".whl", ".rsp")


def _take_built(session: Session) -> None:
    """Unpack such parts once, and only where nothing was compiled yet."""
    parts = sorted(session.state.path("parcels").glob(f"{parcels.BUILT}/built.tar.*"))
    if not parts or (session.state.folder / "build").exists():
        return
    whole = session.state.path("built.tar.xz")
    with whole.open("wb") as file:
        for part in parts:
            file.write(part.read_bytes())
    done = subprocess.run(["tar", "-C", str(session.state.folder), "-xJf", str(whole)], capture_output=True, text=True,
                          env={**os.environ, "XZ_DEFAULTS": "-T0"})
    whole.unlink()
    session.say("  going on from the build folder that came along" if done.returncode == 0 else f"  {done.stderr.strip()}")
    if done.returncode:
        shutil.rmtree(session.state.folder / "build", ignore_errors=True)
