"""Parcels: what a machine without a network needs besides the checkout, in folders small enough to travel one with each command.

    .gpu/1   llama.cpp's source, Python packages, Python's headers; the first part of the default model, where there is no .gpu/3
    .gpu/2   the model, or the rest of it
    .gpu/3   a build folder that came back from such a machine (`pack --built`), so that the next one compiles what changed since
    .gpu/4   the rest of the model, where there is a .gpu/3

Every file is listed in its parcel's manifest.json with its hash. `take_in` copies what it finds into the state folder: a later
command on the same machine need not carry it again. """

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .machine import commit, source_hash
from .state import State

FOLDER = ".gpu"
TRAVELS = 64 << 20
"""The most bytes of checkout and carried paths together that one command may take along."""
ROOM = TRAVELS - (2 << 20)
MODEL_PARTS = {False: (("1", 40 << 20), ("2", -1)), True: (("2", 52 << 20), ("4", -1))}
"""(parcel, bytes) of the model's parts, without and with a build folder; -1: the rest."""

THERE = ("numpy", "cmake")
"""Large packages that the machine has; all others are carried, whatever the machine has."""

PLATFORMS = tuple(f"manylinux_2_{n}_x86_64" for n in (28, 27, 17)) + ("manylinux2014_x86_64", "manylinux1_x86_64", "any")
TOOLS = ("scikit-build-core>=0.11", "patch-ng>=1.18", "ninja>=1.10", "pytest>=8", "hypothesis>=6")

BASE, BUILT = "1", "3"


class PackError(Exception):
    """An error that the user reads in one sentence."""


# ---- here, with a network ------------------------------------------------------------------------------------------------------


def pack(
    root: Path, python: str, model: Path | None, built: Path | None = None, headers: Path | None = None,
    cublas: Path | None = None, say: Callable[[str], None] = print,
) -> None:
    """Fill `.gpu` of the checkout for Python `python` (such as 3.12). `built` holds what came back of a build folder, `headers`
    and `cublas` are folders with Python's and cuBLAS's headers."""
    shutil.rmtree(root / FOLDER, ignore_errors=True)
    base = root / FOLDER / BASE
    base.mkdir(parents=True)
    say("llama.cpp: the pinned source, unpatched, without documents, models and tests ...")
    _source(root, base / "llama.cpp.tar.xz")
    say(f"packages for Python {python} ...")
    _wheels(root, base / "wheels", python)
    if headers is not None:
        _archive(base / "python-include.tar.xz", headers.parent, [headers.name])
    if cublas is not None:
        found = sorted(path.name for path in cublas.glob("cublas*.h"))
        if not found:
            raise PackError(f"{cublas} holds no cublas*.h")
        _archive(base / "cublas-include.tar.xz", cublas, found)
    if model is not None:
        with model.open("rb") as file:
            for number, (parcel, size) in enumerate(MODEL_PARTS[built is not None]):
                part = root / FOLDER / parcel / f"model.gguf.{number:02d}"
                part.parent.mkdir(exist_ok=True)
                part.write_bytes(file.read(size))
    if built is not None:
        parts = sorted(built.glob("built.tar.*"))
        if not parts:
            raise PackError(f"{built} holds no built.tar.*; `run --keep-build` writes them to its --out")
        (root / FOLDER / BUILT).mkdir()
        for part in parts:
            shutil.copyfile(part, root / FOLDER / BUILT / part.name)
    about = {"commit": commit(root), "sources": source_hash(root), "python": python, "pin": pin(root),
             "model_bytes": model.stat().st_size if model else 0}
    for number in sorted(path.name for path in (root / FOLDER).iterdir() if path.is_dir()):
        _write_manifest(root / FOLDER / number, about)


def table(root: Path) -> list[tuple[str, int]]:
    """(name, bytes) of everything packed, and of the checkout, which travels with every command."""
    rows = [("the checkout: tracked and untracked files", tree_bytes(root))]
    for parcel in sorted((root / FOLDER).iterdir()):
        rows += [(f"{FOLDER}/{parcel.name}/{path.name}", _bytes(path)) for path in sorted(parcel.iterdir())]
    return rows


def tree_bytes(root: Path) -> int:
    """Bytes that travel with every command: what git tracks or does not ignore."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True)
    names = [name for name in done.stdout.decode().split("\0") if name]
    return sum((root / name).stat().st_size for name in names if (root / name).is_file())


def commands(root: Path) -> list[tuple[list[str], int]]:
    """(paths to carry, bytes that travel) of the calls that bring every parcel over; the first of them is enough for a build."""
    tree = tree_bytes(root)
    calls: list[tuple[list[str], int]] = []
    for parcel in sorted((root / FOLDER).iterdir(), key=lambda path: (path.name != BASE, path.name != BUILT, path.name)):
        size = _bytes(parcel)
        if calls and calls[-1][1] + size <= ROOM:
            paths, total = calls[-1]
            calls[-1] = ([*paths, f"{FOLDER}/{parcel.name}"], total + size)
        else:
            calls.append(([f"{FOLDER}/{parcel.name}"], tree + size))
    return calls


def _source(root: Path, archive: Path) -> None:
    sys.path.insert(0, str(root / "patches"))
    try:
        import apply
    finally:
        sys.path.pop(0)
    with tempfile.TemporaryDirectory() as folder:
        try:
            apply.unpack(apply.fetch_sdist(), Path(folder))  # checks the sdist against the pin
        except apply.PatchError as error:
            raise PackError(str(error)) from error
        _archive(archive, Path(folder), sorted(os.listdir(folder)))


def _archive(archive: Path, folder: Path, names: Iterable[str]) -> None:
    command = ["tar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-C", str(folder), "-cJf", str(archive), *names]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XZ_OPT": "-6"})
    if done.returncode:
        raise PackError(f"{archive.name} could not be made: {done.stderr.strip()}")


def _wheels(root: Path, folder: Path, python: str) -> None:
    """Download all packages that building and testing need, for another Python than this one."""
    folder.mkdir()
    project = tomllib.loads((root / "pyproject.toml").read_text())
    needed = [name for name in project["project"]["dependencies"] if not name.startswith("llama-cpp-python")]
    with tempfile.TemporaryDirectory() as downloads:
        bindings = _bindings(root, Path(downloads))
        needed += [name for name in _requirements(bindings) if "extra ==" not in name]
        platforms = [option for name in PLATFORMS for option in ("--platform", name)]
        _pip("download", "--only-binary=:all:", "--python-version", python, "--implementation", "cp", *platforms,
             "--dest", downloads, *needed, *TOOLS)
        for wheel in sorted(Path(downloads).glob("*.whl")):
            if wheel.name.split("-")[0].lower() not in THERE:
                shutil.copyfile(wheel, folder / wheel.name)


def _bindings(root: Path, folder: Path) -> Path:
    """Make a wheel of llama-cpp-python's Python part. It comes as source only, and our libraries take the place of its own."""
    sys.path.insert(0, str(root / "patches"))
    try:
        import apply
    finally:
        sys.path.pop(0)
    environment = {**os.environ, "CMAKE_ARGS": "-DLLAMA_BUILD=OFF"}
    _pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(apply.fetch_sdist()), env=environment)
    return next(folder.glob("llama_cpp_python-*.whl"))


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    return [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("Requires-Dist:")]


def _pip(*arguments: str, env: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", arguments[0], "--quiet", *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise PackError(f"pip {arguments[0]} failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")


def _write_manifest(parcel: Path, about: dict[str, Any]) -> None:
    files = {str(path.relative_to(parcel)): sha256(path) for path in _files(parcel)}
    (parcel / "manifest.json").write_text(json.dumps({**about, "files": files}, indent=1))


# ---- there, without ------------------------------------------------------------------------------------------------------------


def take_in(root: Path, state: State) -> list[str]:
    """Copy the parcels that came along into the state folder. Returns their numbers. Raises PackError for a damaged file."""
    taken = []
    for parcel in sorted((root / FOLDER).glob("*/manifest.json")):
        kept = state.path("parcels", parcel.parent.name, "manifest.json")
        if kept.exists() and kept.read_bytes() == parcel.read_bytes():
            continue
        for name, digest in json.loads(parcel.read_text())["files"].items():
            source = parcel.parent / name
            if not source.is_file() or sha256(source) != digest:
                raise PackError(f"{FOLDER}/{parcel.parent.name}/{name} is missing or damaged; run `python tests/gpu_command pack` again")
        shutil.rmtree(kept.parent)
        shutil.copytree(parcel.parent, kept.parent)
        taken.append(parcel.parent.name)
    return taken


def manifest(state: State) -> dict[str, Any] | None:
    """The manifest of the first parcel, once it has come; None before."""
    path = state.path("parcels", BASE, "manifest.json")
    return json.loads(path.read_text()) if path.exists() else None


def part(state: State, number: str, name: str) -> Path | None:
    """A file or folder of a parcel that has come."""
    path = state.path("parcels", number, name)
    return path if path.exists() else None


def model(state: State) -> Path | None:
    """The default model, put together; None as long as a part is missing."""
    about, whole = manifest(state), state.path("models", "default.gguf")
    size = about["model_bytes"] if about else 0
    if size and not (whole.exists() and whole.stat().st_size == size):
        parts = sorted(state.path("parcels").glob("*/model.gguf.*"), key=lambda path: path.suffix)
        if sum(path.stat().st_size for path in parts) != size:
            return None
        with whole.open("wb") as file:
            for path in parts:
                file.write(path.read_bytes())
    return whole if size else None


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def pin(root: Path) -> str:
    lines = (root / "patches" / "UPSTREAM").read_text().splitlines()
    return next(line.split("=")[1].strip() for line in lines if line.startswith("sha256"))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "manifest.json")


def _bytes(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
