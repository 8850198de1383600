"""A plug-in with the libraries for NVIDIA's GPUs beside a package without CUDA: found and opened, or refused in one sentence. Its libraries are
stand-ins, which the host's compiler makes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.native_build import needs, program

import edgekv
from edgekv._native import device_calls

pytestmark = needs()

PLANE = """
#include "attention/cuda/engine.h"
#include <cstdio>
using namespace edgekv;
#ifdef NEEDS
int runtime();
#else
static int runtime() { return 1; }
#endif
static int count() { return runtime(); }
static bool info(int, edgekv_device_info * out) {
    *out = {};
    out->kind = EDGEKV_DEVICE_CUDA;
    std::snprintf(out->name, sizeof(out->name), "stand-in");
    std::snprintf(out->problem, sizeof(out->problem), "a stand-in computes nothing");
    return true;
}
const DeviceLibrary * edgekv_device_library() {
    static const DeviceLibrary library = { kEngineAbi, EDGEKV_DEVICE_CUDA, count, info, {}, {}, {}, {}, {}, {}, {} };
    return &library;
}
"""
BACKEND = """
#include "ggml-backend-impl.h"
static const char * name(ggml_backend_reg_t) { return "CUDA"; }
static size_t count(ggml_backend_reg_t) { return 0; }
extern "C" ggml_backend_reg_t ggml_backend_init() {
    static ggml_backend_reg backend = { GGML_BACKEND_API_VERSION, { name, count, nullptr, nullptr }, nullptr };
    return &backend;
}
"""
ASK = """
import ctypes, json
from edgekv import _native
_native.load()
from edgekv._native import device_calls
from edgekv.common.enums import DeviceKind
find = ctypes.CDLL(str(_native.lib_dir() / "libggml.so")).ggml_backend_reg_by_name
find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
n = device_calls.count(DeviceKind.CUDA)
opened = {line.split(maxsplit=5)[5].strip().rpartition("/")[2] for line in open("/proc/self/maps") if "/edgekv_cuda" in line}
print(json.dumps({"folder": str(device_calls.folder()), "problem": device_calls.plugin_problem(), "opened": sorted(opened),
                  "names": [device_calls.info(DeviceKind.CUDA, i).name for i in range(n)], "registered": bool(find(b"CUDA"))}))
"""
LIBRARIES = ["libedgekv-cuda.so", "libggml-cuda.so"]


@pytest.fixture(scope="module")
def libraries(upstream: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-ins; in `lacks` is a libedgekv-cuda.so that needs a library that is nowhere."""
    folder = tmp_path_factory.mktemp("libraries")
    for name, text in (("plane", PLANE), ("backend", BACKEND), ("runtime", "int runtime() { return 1; }\n"), ("driver", "")):
        (folder / f"{name}.cpp").write_text(text)
    ours = ["-Icheckout/native/src", "-Icheckout/native/include"]
    shared = ["-fPIC", "-shared"]
    program(folder, "libedgekv-cuda.so", ["plane.cpp"], *shared, *ours)
    program(folder, "libggml-cuda.so", ["backend.cpp"], *shared, *(f"-I{upstream / 'ggml' / part}" for part in ("src", "include")))
    program(folder, "libcuda.so.1", ["driver.cpp"], *shared)
    program(folder, "libabsent.so.13", ["runtime.cpp"], *shared, links=["-Wl,-soname,libabsent.so.13"])
    program(folder, "lacks.so", ["plane.cpp"], *shared, *ours, "-DNEEDS", links=["./libabsent.so.13"])
    return folder


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of packages with this edgekv alone, without CUDA."""
    package, folder = Path(edgekv.lib_folder).parent, tmp_path / "packages"
    if not (package / "__init__.py").is_file() or device_calls.folder() is not None:
        pytest.skip("an editable install lies in two folders; a build with CUDA needs no plug-in")

    def link(source: str, copy: str) -> None:
        try:
            os.link(source, copy)
        except OSError:  # another file system
            shutil.copy2(source, copy)

    for path in (package, *package.parent.glob("edgekv-*.dist-info")):
        shutil.copytree(path, folder / path.name, copy_function=link)
    shutil.copy2(package.parent / "edgekv_libraries.py", folder)
    return folder


def plug_in(packages: Path, libraries: Path, cuda: int = 13, sources: str | None = None) -> Path:
    """Its folder. sources: what it says that it is made of; None: the same as this package."""
    folder = packages / f"edgekv_cuda{cuda}" / "lib"
    folder.mkdir(parents=True)
    for name in LIBRARIES:
        shutil.copy2(libraries / name, folder)
    (folder / "sources.txt").write_text(f"{sources or device_calls.sources()}\n")
    return folder


def environment(packages: Path, **more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(packages)} | more


def asked(packages: Path) -> dict:
    done = subprocess.run([sys.executable, "-c", ASK], env=environment(packages), cwd=packages.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def doctor(packages: Path, libraries: Path, tmp_path: Path):
    """`doctor()` is what `edgekv doctor` prints on a machine whose driver lists a card."""
    (tmp_path / "bin").mkdir()
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GeForce RTX 4070, 12282 MiB, 580.65.06'\n")
    smi.chmod(0o755)
    (tmp_path / "driver").mkdir()
    shutil.copy2(libraries / "libcuda.so.1", tmp_path / "driver")
    machine = environment(packages, PATH=f"{smi.parent}{os.pathsep}{os.environ['PATH']}", LD_LIBRARY_PATH=str(tmp_path / "driver"), COLUMNS="1000")

    def run() -> str:
        done = subprocess.run([sys.executable, "-m", "edgekv", "doctor"], env=machine, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("cuda", [13, 12])
def test_a_plug_in_of_the_same_sources_is_opened(packages: Path, libraries: Path, cuda: int):
    folder = plug_in(packages, libraries, cuda)
    assert asked(packages) == {"folder": str(folder), "problem": None, "opened": LIBRARIES, "names": ["stand-in"], "registered": True}


def test_a_plug_in_of_other_sources_is_not_opened(packages: Path, libraries: Path):
    plug_in(packages, libraries, sources="0" * 32)
    told = asked(packages)
    problem = told.pop("problem")
    assert told == {"folder": "None", "opened": [], "names": [], "registered": False}
    assert "edgekv-cuda13 is of another build" in problem and "\n" not in problem
    (packages / "edgekv_cuda13" / "lib" / "sources.txt").unlink()
    assert asked(packages)["problem"] == problem, "one that does not say is none of ours"


def test_of_two_plug_ins_the_one_that_fits_is_opened(packages: Path, libraries: Path):
    plug_in(packages, libraries, 13, sources="0" * 32)
    folder = plug_in(packages, libraries, 12)
    assert asked(packages) == {"folder": str(folder), "problem": None, "opened": LIBRARIES, "names": ["stand-in"], "registered": True}


def test_a_build_with_cuda_opens_its_own_libraries(packages: Path, libraries: Path):
    plug_in(packages, libraries)
    own = packages / "edgekv" / "lib"
    for name in LIBRARIES:
        shutil.copy2(libraries / name, own)
    assert asked(packages) == {"folder": str(own), "problem": None, "opened": [], "names": ["stand-in"], "registered": True}


def test_doctor_with_a_plug_in(packages: Path, libraries: Path, doctor):
    plug_in(packages, libraries)
    text = doctor()
    assert "not used: a stand-in computes nothing" in text and "device library  libedgekv-cuda" in text
    assert "backends        cpu, cuda" in text and f"{packages / 'edgekv_cuda13' / 'lib'}: libedgekv-cuda.so, libggml-cuda.so" in text


def test_doctor_with_a_plug_in_of_other_sources(packages: Path, libraries: Path, doctor):
    plug_in(packages, libraries, sources="0" * 32)
    text = doctor()
    said = "the plug-in edgekv-cuda13 is of another build than this EdgeKV; install both from one release"
    assert f"not used: {said}" in text and f"device library  none: {said}" in text


def test_doctor_with_a_plug_in_without_the_libraries_of_cuda(packages: Path, libraries: Path, doctor):
    shutil.copy2(libraries / "lacks.so", plug_in(packages, libraries) / "libedgekv-cuda.so")
    assert "not used: the library libabsent.so.13 is not found" in doctor()


def test_doctor_without_a_plug_in_says_how_to_get_one(packages: Path, doctor):
    """The wheel for people has extras that bring one; a package of a checkout was built without CUDA."""
    assert 'not used: this build of EdgeKV has no CUDA code; in a checkout, pip install ".[cuda13]" builds it' in doctor()
    metadata = next(packages.glob("edgekv-*.dist-info")) / "METADATA"
    text = metadata.read_text()
    metadata.unlink()  # it may be a link to the installed one
    metadata.write_text(text.replace("Provides-Extra: cuda13\n", 'Provides-Extra: cuda13\nRequires-Dist: edgekv-cuda13==1; extra == "cuda13"\n'))
    assert 'not used: this build of EdgeKV has no CUDA code; pip install "edgekv[cuda13]" brings it' in doctor()
