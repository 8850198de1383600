"""A CUDA build and NVIDIA's libraries: how it finds those that pip installed, and that it lives without. Toy libraries are linked as the
build links the real ones."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgekv._native.libraries import load_problem
from edgekv.planning.devices import DRIVER_NEEDED

CMAKE = Path(__file__).resolve().parents[2] / "native" / "cuda" / "libraries.cmake"
PACKAGES = {"13.0": ("nvidia/cu13", "nvidia/cu13"), "12.4": ("nvidia/cuda_runtime", "nvidia/cublas")}
TREE = """
cmake_minimum_required(VERSION 3.22)
project(toy LANGUAGES CXX)
include("{cmake}")
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
foreach(name cudart cublas)
    add_library(${{name}} SHARED ${{name}}.cpp)
    set_target_properties(${{name}} PROPERTIES SOVERSION 13)
endforeach()
set(loader ggml)
add_library(${{loader}} SHARED ${{loader}}.cpp)
add_subdirectory(ggml-cuda)
target_compile_definitions(ggml PUBLIC GGML_USE_CUDA)
edgekv_opens_backend(ggml ggml-cuda)
add_library(llama SHARED llama.cpp)
target_link_libraries(llama PUBLIC ggml)
edgekv_cuda_rpath({version} "{toolkit}" rpath)
set_target_properties(ggml llama PROPERTIES INSTALL_RPATH "$ORIGIN")
set_target_properties(ggml-cuda PROPERTIES INSTALL_RPATH "${{rpath}}")
"""
SOURCES = {
    "cudart.cpp": "int runtime() { return 1; }", "cublas.cpp": "int blas() { return 2; }",
    "ggml.cpp": '#ifdef GGML_USE_CUDA\nint backend();\nint use() { return backend(); }\n#endif\nextern "C" int answer() { return 42; }',
    "llama.cpp": '#ifdef GGML_USE_CUDA\n#error ggml does not register it\n#endif\nextern "C" int answer(); int asked() { return answer(); }',
    "ggml-cuda/cuda.cpp": "int runtime(); int blas();\nint backend() { return runtime() + blas(); }\n"
                          '#ifdef GGML_BACKEND_DL\nextern "C" int ggml_backend_init() { return backend(); }\n#endif',
    "ggml-cuda/CMakeLists.txt": "add_library(ggml-cuda SHARED cuda.cpp)\ntarget_link_libraries(ggml PUBLIC ggml-cuda)\n"
                                "target_link_libraries(ggml-cuda PRIVATE cudart cublas)\n",
}


@pytest.fixture(params=PACKAGES)
def packages(request, tmp_path: Path) -> Path:
    """A folder of packages: edgekv's libraries, and NVIDIA's where pip puts them."""
    if not shutil.which("cmake") or not shutil.which("g++"):
        pytest.skip("cmake and g++ are needed")
    source, build, out = tmp_path / "source", tmp_path / "build", tmp_path / "packages"
    (source / "ggml-cuda").mkdir(parents=True)
    for name, text in SOURCES.items():
        (source / name).write_text(text + "\n")
    (source / "CMakeLists.txt").write_text(TREE.format(cmake=CMAKE, version=request.param, toolkit=tmp_path / "toolkit"))
    for command in (["cmake", "-S", source, "-B", build, "-DCMAKE_CXX_COMPILER=g++"], ["cmake", "--build", build]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    for folder, name in zip(PACKAGES[request.param], ("cudart", "cublas")):
        (out / folder / "lib").mkdir(parents=True, exist_ok=True)
        shutil.copy(build / f"lib{name}.so.13", out / folder / "lib")
    (out / "edgekv/lib").mkdir(parents=True)
    for name in ("ggml", "llama", "ggml-cuda"):
        shutil.copy(next(build.rglob(f"lib{name}.so")), out / "edgekv/lib")
    return out


@pytest.mark.parametrize(("version", "mode"), [("13.0.88", "size"), ("12.9.86", "speed"), ("12.8.61", "speed"), ("12.4.131", "")])
def test_kernels_are_compressed_as_the_oldest_driver_reads_them(tmp_path: Path, version: str, mode: str):
    """Mode size needs driver 550, and DRIVER_NEEDED promises 525 for CUDA 12."""
    script = tmp_path / "ask.cmake"
    script.write_text(f'include("{CMAKE}")\nedgekv_cuda_compression({version} mode)\nmessage("mode: ${{mode}}")\n')
    done = subprocess.run(["cmake", "-P", str(script)], capture_output=True, text=True)
    assert done.stderr.split()[1:] == ([mode] if mode else [])
    assert DRIVER_NEEDED == {13: 580, 12: 525}


def opened(library: Path, function: str) -> str:
    code = f"import ctypes; print(ctypes.CDLL({str(library)!r}).{function}())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_libraries_of_pip_are_found(packages):
    assert opened(packages / "edgekv/lib/libggml-cuda.so", "ggml_backend_init") == "3"


def test_everything_else_works_without_them(packages):
    library = packages / "edgekv/lib/libggml-cuda.so"
    shutil.move(packages / "nvidia", packages.parent / "elsewhere")
    assert opened(packages / "edgekv/lib/libllama.so", "answer") == "42"
    assert "cannot open shared object file" in opened(library, "ggml_backend_init")
    assert load_problem(str(library)) in [f"the library lib{name}.so.13 is not found" for name in ("cudart", "cublas")]

    (packages.parent / "toolkit").mkdir()
    for found in (packages.parent / "elsewhere").rglob("*.so.13"):
        shutil.copy(found, packages.parent / "toolkit")
    assert opened(library, "ggml_backend_init") == "3", "the toolkit that it was built with"
