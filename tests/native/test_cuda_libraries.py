"""A CUDA build and NVIDIA's libraries: how it finds those that pip installed, and that it lives without. Toy libraries are linked as the
build links the real ones; the toy of cuBLAS tells how it was called."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgekv._native.libraries import load_problem
from edgekv.planning.devices import DRIVER_NEEDED

CMAKE = Path(__file__).resolve().parents[2] / "native" / "cuda" / "libraries.cmake"
PACKAGES = {"113.0": ("nvidia/cu113", "nvidia/cu113"), "7.4": ("nvidia/cuda_runtime", "nvidia/cublas")}
"""By version of CUDA: as 13 and as 12, but with numbers of which the loader of no machine has libraries."""
TREE = """
cmake_minimum_required(VERSION 3.22)
project(toy LANGUAGES CXX)
include("{cmake}")
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
foreach(name cudart cublas)
    add_library(${{name}} SHARED ${{name}}.cpp)
    set_target_properties(${{name}} PROPERTIES SOVERSION {major})
    target_include_directories(${{name}} PUBLIC .)
    add_library(CUDA::${{name}} ALIAS ${{name}})
endforeach()
set(loader ggml)
add_library(${{loader}} SHARED ${{loader}}.cpp)
add_subdirectory(ggml-cuda)
target_compile_definitions(ggml PUBLIC GGML_USE_CUDA)
edgekv_opens_backend(ggml ggml-cuda)
edgekv_opens_cublas(ggml-cuda)
add_library(llama SHARED llama.cpp)
target_link_libraries(llama PUBLIC ggml)
edgekv_cuda_rpath({version} "{toolkit}" rpath)
set_target_properties(ggml llama PROPERTIES INSTALL_RPATH "$ORIGIN")
set_target_properties(ggml-cuda PROPERTIES INSTALL_RPATH "${{rpath}}")
"""
FLOATS, ANY = "Operation Operation int int int const_float*", "Operation Operation int int int const_void*"
CUBLAS = {  # what ggml-cuda calls, and the types of its arguments behind the handle
    "cublasDestroy_v2": "", "cublasSetMathMode": "Math", "cublasSetStream_v2": "stream", "cublasSetWorkspace_v2": "void* size_t",
    "cublasSgemm_v2": f"{FLOATS} const_float* int const_float* int const_float* float* int",
    "cublasSgemmBatched": f"{FLOATS} const_float*const* int const_float*const* int const_float* float*const* int int",
    "cublasSgemmStridedBatched": f"{FLOATS} const_float* int long_long const_float* int long_long const_float* float* int long_long int",
    "cublasGemmEx": f"{ANY} const_void* Data int const_void* Data int const_void* void* Data int Compute Algo",
    "cublasGemmBatchedEx": f"{ANY} const_void*const* Data int const_void*const* Data int const_void* void*const* Data int int Compute Algo",
    "cublasGemmStridedBatchedEx": f"{ANY} const_void* Data int long_long const_void* Data int long_long const_void* void* Data int long_long int Compute Algo",
    "cublasStrsmBatched": "Side Fill Operation Diagonal int int const_float* const_float*const* int float*const* int int",
}
ENUMS = {"Operation": "cublasOperation_t", "Math": "cublasMath_t", "Compute": "cublasComputeType_t", "Algo": "cublasGemmAlgo_t",
         "Side": "cublasSideMode_t", "Fill": "cublasFillMode_t", "Diagonal": "cublasDiagType_t", "Data": "cudaDataType"}
HEADER = """
#pragma once
#include <cstddef>
#define CUBLAS_VER_MAJOR {major}
enum cublasStatus_t : int {{ CUBLAS_STATUS_NOT_INITIALIZED = 1 }};
{enums}
using cublasHandle_t = struct handle *;
using cudaStream_t = struct stream *;
extern "C" {{
const char * cublasGetStatusString(cublasStatus_t);
cublasStatus_t cublasCreate_v2(cublasHandle_t *);
{functions}
}}
"""


def types(name: str) -> list[str]:
    words = (ENUMS.get(word, "cudaStream_t" if word == "stream" else word) for word in CUBLAS[name].split())
    return ["cublasHandle_t", *(word if word in (*ENUMS.values(), "cudaStream_t", "size_t") else word.replace("_", " ") for word in words)]


def cublas_header(major: str) -> str:
    functions = "\n".join(f"cublasStatus_t {name}({', '.join(types(name))});" for name in CUBLAS)
    return HEADER.format(major=major, enums="\n".join(f"enum {name} : int {{}};" for name in ENUMS.values()), functions=functions)


TOY = """
#include "cublas_v2.h"
#include <string>
static std::string said;
static int n;
template <class... A> static cublasStatus_t tell(const char * name, A... all) {
    said += name;
    ((said += " " + std::to_string((long long) all)), ...);
    said += "\\n";
    return cublasStatus_t(100 + n++);
}
const char * cublasGetStatusString(cublasStatus_t status) { return status ? "" : said.c_str(); }
cublasStatus_t cublasCreate_v2(cublasHandle_t * handle) { *handle = cublasHandle_t(1); return tell(__func__); }
"""
"""Writes each call down, answers with another status each time, and tells all for the status 0."""
BACKEND = """
#include "cublas_v2.h"
#include <string>
int runtime();
int backend() { return runtime(); }
#ifdef GGML_BACKEND_DL
extern "C" int ggml_backend_init() { return backend(); }
extern "C" const char * called() {
    static std::string said;
    cublasHandle_t handle = nullptr;
    said = std::to_string(cublasCreate_v2(&handle));
"""
"""Calls each function with the numbers 1, 2, 3... as arguments, and gives the statuses and the text of 0."""


def toy_cublas() -> str:
    out = []
    for name in CUBLAS:
        arguments = [f"a{i}" for i in range(len(types(name)))]
        out.append(f"cublasStatus_t {name}({', '.join(map(' '.join, zip(types(name), arguments)))}) {{ return tell(__func__, {', '.join(arguments)}); }}\n")
    return TOY + "".join(out)


def toy_backend() -> str:
    calls = (f"{name}({', '.join(['handle', *(f'({kind}) {i}' for i, kind in enumerate(types(name)[1:], 2))])})" for name in CUBLAS)
    told = "".join(f'    said += " " + std::to_string({call});\n' for call in calls)
    return BACKEND + told + '    said += "\\n";\n    return (said += cublasGetStatusString(cublasStatus_t(0))).c_str();\n}\n#endif'


SOURCES = {
    "cudart.cpp": "int runtime() { return 1; }", "cublas.cpp": toy_cublas(),
    "ggml.cpp": '#ifdef GGML_USE_CUDA\nint backend();\nint use() { return backend(); }\n#endif\nextern "C" int answer() { return 42; }',
    "llama.cpp": '#ifdef GGML_USE_CUDA\n#error ggml does not register it\n#endif\nextern "C" int answer(); int asked() { return answer(); }',
    "ggml-cuda/cuda.cpp": toy_backend(),
    "ggml-cuda/CMakeLists.txt": "add_library(ggml-cuda SHARED cuda.cpp)\ntarget_link_libraries(ggml PUBLIC ggml-cuda)\n"
                                "target_link_libraries(ggml-cuda PRIVATE CUDA::cudart CUDA::cublas)\n",
}


@pytest.fixture(scope="module", params=PACKAGES)
def built(request, tmp_path_factory) -> Path:
    """A folder of packages: edgekv's libraries, and NVIDIA's where pip puts them."""
    if not shutil.which("cmake") or not shutil.which("g++"):
        pytest.skip("cmake and g++ are needed")
    major = request.param.partition(".")[0]
    source, build, out = (tmp_path_factory.mktemp(name) for name in ("source", "build", "packages"))
    (source / "ggml-cuda").mkdir(parents=True)
    for name, text in (SOURCES | {"cublas_v2.h": cublas_header(major)}).items():
        (source / name).write_text(text + "\n")
    (source / "CMakeLists.txt").write_text(TREE.format(cmake=CMAKE, version=request.param, major=major, toolkit="$ORIGIN/../../../toolkit"))
    flags = ["-DCMAKE_CXX_COMPILER=g++", "-DCMAKE_CXX_STANDARD=17"]
    for command in (["cmake", "-S", source, "-B", build, *flags], ["cmake", "--build", build]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    for folder, name in zip(PACKAGES[request.param], ("cudart", "cublas")):
        (out / folder / "lib").mkdir(parents=True, exist_ok=True)
        shutil.copy(build / f"lib{name}.so.{major}", out / folder / "lib")
    (out / "edgekv/lib").mkdir(parents=True)
    for name in ("ggml", "llama", "ggml-cuda"):
        shutil.copy(next(build.rglob(f"lib{name}.so")), out / "edgekv/lib")
    return out


@pytest.fixture
def packages(built, tmp_path) -> Path:
    """The same, for a test that changes it; a folder `toolkit` beside it is that of the build."""
    return Path(shutil.copytree(built, tmp_path / "packages"))


@pytest.mark.parametrize(("version", "mode"), [("13.0.88", "size"), ("12.9.86", "speed"), ("12.8.61", "speed"), ("12.4.131", "")])
def test_kernels_are_compressed_as_the_oldest_driver_reads_them(tmp_path: Path, version: str, mode: str):
    """Mode size needs driver 550, and DRIVER_NEEDED promises 525 for CUDA 12."""
    script = tmp_path / "ask.cmake"
    script.write_text(f'include("{CMAKE}")\nedgekv_cuda_compression({version} mode)\nmessage("mode: ${{mode}}")\n')
    done = subprocess.run(["cmake", "-P", str(script)], capture_output=True, text=True)
    assert done.stderr.split()[1:] == ([mode] if mode else [])
    assert DRIVER_NEEDED == {13: 580, 12: 525}


def opened(library: Path, function: str, kind: str = "c_int") -> str:
    return printed(call(library, function, kind))


def call(library: Path, function: str, kind: str) -> str:
    return (f"import ctypes\nasked = ctypes.CDLL({str(library)!r}).{function}\nasked.restype = ctypes.{kind}\nfound = asked()\n"
            "print(found.decode() if isinstance(found, bytes) else found)")


def cublas_problem(library: Path) -> str:
    return printed(f"from pathlib import Path\nfrom edgekv._native.libraries import cublas_problem\nprint(cublas_problem(Path({str(library)!r})))")


def printed(code: str) -> str:
    """In a process of its own: what one opens is found by the next one in the same process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_libraries_of_pip_are_found(packages):
    assert opened(packages / "edgekv/lib/libggml-cuda.so", "ggml_backend_init") == "1"


def test_everything_else_works_without_them(packages):
    library = packages / "edgekv/lib/libggml-cuda.so"
    runtime = next((packages / "nvidia").rglob("libcudart.so.*"))
    shutil.move(packages / "nvidia", packages.parent / "elsewhere")
    assert opened(packages / "edgekv/lib/libllama.so", "answer") == "42"
    assert "cannot open shared object file" in opened(library, "ggml_backend_init")
    assert load_problem(str(library)) == f"the library {runtime.name} is not found"

    (packages.parent / "toolkit").mkdir()
    for found in (packages.parent / "elsewhere").rglob("*.so.*"):
        shutil.copy(found, packages.parent / "toolkit")
    assert opened(library, "ggml_backend_init") == "1", "the toolkit that it was built with"
    assert opened(library, "called", "c_char_p").startswith("100 "), "and its cuBLAS"


def test_cublas_gets_each_call_as_ggml_makes_it(packages):
    statuses, *calls = opened(packages / "edgekv/lib/libggml-cuda.so", "called", "c_char_p").splitlines()
    assert statuses.split() == [str(100 + i) for i in range(1 + len(CUBLAS))]
    assert cublas_problem(packages / "edgekv/lib/libggml-cuda.so") == "None"
    assert calls == ["cublasCreate_v2", *(" ".join([name, *map(str, range(1, 1 + len(types(name))))]) for name in CUBLAS)]
    names = subprocess.run(["nm", "-D", packages / "edgekv/lib/libggml-cuda.so"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in names.splitlines() if "cublas" in line] == ["edgekv_cublas_problem"], "it takes the calls of others"


def test_without_cublas_a_first_call_says_what_to_install(packages):
    """ggml ends the process with the text of the status."""
    library, missing = packages / "edgekv/lib/libggml-cuda.so", next((packages / "nvidia").rglob("libcublas.so.*"))
    missing.unlink()
    assert opened(library, "ggml_backend_init") == "1", "which models of other matrices do without"
    statuses, sentence = opened(library, "called", "c_char_p").splitlines()
    assert set(statuses.split()) == {"1"}, "not initialised"
    package = "nvidia-cublas==113.*" if missing.name.endswith("113") else "nvidia-cublas-cu7"
    assert missing.name in sentence and f'pip install "{package}"' in sentence
    assert cublas_problem(library) == sentence
    done = subprocess.run([sys.executable, "-c", call(library, "called", "c_char_p")], capture_output=True, text=True, check=True)
    assert done.stderr == f"edgekv: {sentence}\n", "a person reads no log"
