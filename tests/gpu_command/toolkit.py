"""The CUDA toolkit as the build wants it. A bare machine may have nvcc and the runtime in one place and cuBLAS as a Python
package in another, without the names that a linker looks for: what is missing in the toolkit is looked for there and handed to
CMake by name."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .machine import tool


class ToolkitError(Exception):
    """An error that the user reads in one sentence."""


@dataclass(frozen=True)
class Toolkit:
    """`cmake` are definitions for a build, `libraries` folders that a program needs on LD_LIBRARY_PATH."""

    nvcc: Path
    root: Path
    cmake: list[str] = field(default_factory=list)
    libraries: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find(links: Path, carried: Path | None = None) -> Toolkit:
    """The toolkit around nvcc, completed; `links` is an empty or missing folder for what has no name of its own. Raises
    ToolkitError."""
    nvcc = tool("nvcc")
    if nvcc is None:
        raise ToolkitError("there is no nvcc on PATH or in /usr/local/cuda*/bin; install the CUDA toolkit")
    root = _root(Path(nvcc))
    links.mkdir(parents=True, exist_ok=True)
    cmake, libraries, notes = [f"-DCMAKE_CUDA_COMPILER={nvcc}", f"-DCUDAToolkit_ROOT={root}"], [], []
    include = _first(root.glob("include/cublas_v2.h"), root.glob("targets/*/include/cublas_v2.h"))
    if include is None:
        places = [*(folder / "include" for folder in _packages()), Path("/usr/include"), *([carried] if carried else [])]
        include = _first(*(folder.glob("cublas_v2.h") for folder in places))
        if include is None:
            raise ToolkitError(f"cuBLAS's headers (cublas_v2.h) are neither in {root} nor in the Python package nvidia-cublas; "
                               "install one")
        copied = links / "include"
        copied.mkdir(exist_ok=True)
        for header in include.parent.glob("cublas*.h"):  # alone: that folder may hold another toolkit's headers too
            _link(copied / header.name, header)
        cmake.append(f"-DCMAKE_CUDA_FLAGS=-isystem {copied}")
        notes.append(f"cuBLAS's headers from {include.parent}")
    for name, variable, places in (
        ("cublas", "CUDA_cublas_LIBRARY", _places(root)),
        ("cuda", "CUDA_cuda_driver_LIBRARY", [*_stub_folders(root), *_loaded("cuda")]),
    ):
        found = _library(name, places)
        if found is None:
            raise ToolkitError(f"lib{name}.so is not found: looked in {', '.join(map(str, places))}")
        if found.name != f"lib{name}.so" or root not in found.parents:  # a package holds libcublas.so.13 alone
            notes.append(f"lib{name}.so is {found}")
            found = _link(links / "lib" / f"lib{name}.so", found)
            cmake.append(f"-D{variable}={found}")
    for name in ("cudart", "cublas", "cublasLt"):
        folder = _library_folder(name, _places(root))
        if folder is not None and folder not in libraries:
            libraries.append(folder)
    return Toolkit(Path(nvcc), root, cmake, libraries, notes)


def _root(nvcc: Path) -> Path:
    """The toolkit's folder. nvcc may be a script or a link, and the compiler itself says where it stands."""
    done = subprocess.run([str(nvcc), "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True)
    here = re.search(r"^#\$ _HERE_=(.+)$", done.stderr + done.stdout, re.M)
    return Path(here[1]).resolve().parent if here else nvcc.resolve().parent.parent


def _packages() -> list[Path]:
    """Folders of NVIDIA's Python packages: nvidia/cu13 holds include and lib for all, nvidia/cublas for one."""
    found = []
    for entry in sys.path:
        found += [folder for folder in sorted(Path(entry or ".").glob("nvidia/c*")) if (folder / "lib").is_dir()]
    return found


def _library_folders(root: Path) -> list[Path]:
    return [folder for folder in (root / "lib64", root / "lib", *sorted(root.glob("targets/*/lib"))) if folder.is_dir()]


def _stub_folders(root: Path) -> list[Path]:
    return [folder / "stubs" for folder in _library_folders(root) if (folder / "stubs").is_dir()]


def _places(root: Path) -> list[Path]:
    return [*_library_folders(root), *(folder / "lib" for folder in _packages()), *_loaded("cublas")]


def _loaded(name: str) -> list[Path]:
    """Folders in which the loader finds libNAME, and the usual folders of a driver's libraries."""
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True).stdout
    except OSError:
        listed = ""
    told = [Path(path).parent for path in re.findall(rf"lib{name}\.so\S* .*=> (\S+)", listed)]
    asked = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    usual = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64")
    return list(dict.fromkeys([*told, *asked, *map(Path, usual)]))


def _library(name: str, folders: list[Path]) -> Path | None:
    return _first(*(folder.glob(f"lib{name}.so") for folder in folders), *(folder.glob(f"lib{name}.so.*") for folder in folders))


def _library_folder(name: str, folders: list[Path]) -> Path | None:
    """The folder of the file that a program asks for at run time: libcublas.so.13."""
    found = _first(*(folder.glob(f"lib{name}.so.[0-9]*") for folder in folders))
    return None if found is None else found.parent


def _first(*searches: Iterator[Path]) -> Path | None:
    for search in searches:
        for path in sorted(search):
            return path
    return None


def _link(link: Path, target: Path) -> Path:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    return link
