"""The door to native code: the only package that touches ffi, a library handle or a pointer.

`prepare()` comes first: it checks that llama-cpp-python runs on our libllama, and that all versions fit.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import edgekv
from edgekv.common.errors import AbiMismatch, NativeError

LLAMA_CPP_PYTHON = "0.3.36"
"""The llama-cpp-python whose structs and functions match our libllama (patches/UPSTREAM)."""

_loaded = _prepared = False


def lib_dir() -> Path:
    """Folder of our shared libraries inside the installed package."""
    if edgekv.lib_folder is None:
        raise NativeError("EdgeKV's libraries are missing from the installed package; reinstall it: pip install --force-reinstall edgekv")
    return Path(edgekv.lib_folder).resolve()


def prepare() -> None:
    """Load our libraries, and check the versions of the Python packages on them. Idempotent. Raises as `load()`, and AbiMismatch if
    llama-cpp-python or this package is of another version."""
    global _prepared
    if _prepared:
        return
    load()
    check_packages()
    _check_own_version()
    _prepared = True


def load() -> None:
    """Load our libraries, but leave the versions to `prepare()`: to ask for them takes as long as to load a small
    model. Idempotent.

    Raises AbiMismatch if llama-cpp-python already runs on other libraries, ConfigError for a bad EDGEKV_ISA, NativeError if the libraries
    cannot be loaded.
    """
    global _loaded
    if _loaded:
        return
    _check_llama_cpp(lib_dir())

    from edgekv._native import core, instructions, prompt_kernel

    core.init()
    if not os.environ.get("EDGEKV_ISA"):
        instructions.use_isa(prompt_kernel.choose(core.isa(), core.isa_available(), instructions.time_prompts))
    if edgekv.owns_process:
        from edgekv._native import crash

        crash.tell()
    _loaded = True


def _import_compiled(name: str) -> ModuleType:
    """One of our compiled modules; NativeError if there is none, or it cannot be loaded."""
    try:
        return importlib.import_module(f"edgekv._native.{name}")
    except ImportError as error:
        source = Path(__file__).resolve().parent.parent.parent
        if (source / "pyproject.toml").is_file():
            raise NativeError(f"edgekv was imported from the source tree {source}, which holds no compiled module, and no package is "
                              "installed; install it with `pip install .`") from None
        raise NativeError(f"EdgeKV's native module cannot be loaded ({error}); reinstall it") from None


def check_packages() -> None:
    """Raise AbiMismatch for a llama-cpp-python of another version, or one that was imported before us on other libraries."""
    _check_llama_cpp(lib_dir())
    spec = importlib.util.find_spec("llama_cpp")
    if spec is not None and _lies_beside(str(spec.origin), "llama_cpp_python", LLAMA_CPP_PYTHON):
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("llama-cpp-python")
    except PackageNotFoundError:
        raise AbiMismatch(f"llama-cpp-python is not installed; EdgeKV needs llama-cpp-python=={LLAMA_CPP_PYTHON}") from None
    if found != LLAMA_CPP_PYTHON:
        raise AbiMismatch(f"llama-cpp-python {found} is installed, EdgeKV is built for {LLAMA_CPP_PYTHON}; "
                          f"pip install llama-cpp-python=={LLAMA_CPP_PYTHON}")


def _check_own_version() -> None:
    """Refuse a libedgekv of another version than this package."""
    from edgekv._native import core

    if not _lies_beside(str(edgekv.lib_folder), "edgekv", core.version()) and core.version() != (ours := edgekv.__version__):
        raise AbiMismatch(f"libedgekv is version {core.version()}, the Python package {ours}; reinstall edgekv")


def _lies_beside(part: str, distribution: str, version: str) -> bool:
    """Whether pip installed this version of a distribution, with a file or folder of its package. importlib.metadata knows also where else it may
    lie, but to import it takes as long as to load a small model."""
    return os.path.isdir(os.path.join(os.path.dirname(os.path.dirname(part)), f"{distribution}-{version}.dist-info"))


def _check_llama_cpp(folder: Path) -> None:
    """Refuse a llama_cpp that was imported before us on other libraries."""
    loaded = sys.modules.get("llama_cpp.llama_cpp")
    if loaded is not None:
        path = Path(str(getattr(loaded._lib, "_name", "")))
        if path.resolve().parent != folder.resolve():
            raise AbiMismatch(f"llama_cpp was imported before edgekv and runs on {path.parent}; import edgekv first, "
                              f"or set LLAMA_CPP_LIB_PATH={folder}")


def isa() -> str:
    """The instruction set of our kernels, without loading llama_cpp."""
    load()
    from edgekv._native import core

    return core.isa()


def info() -> dict:
    """The loaded libraries: versions, instruction sets, backends, paths."""
    prepare()
    from edgekv._native import core, device_calls

    import llama_cpp

    folders = dict.fromkeys(filter(None, (lib_dir(), device_calls.folder())))
    return {
        "version": core.version(),
        "upstream": core.upstream(),
        "enabled": core.enabled(),
        "llama_cpp_python": llama_cpp.__version__,
        "isa": core.isa(),
        "isa_available": core.isa_available(),
        "system": llama_cpp.llama_print_system_info().decode().strip(),
        "libraries": {path.name: str(path) for folder in folders for path in sorted(folder.iterdir()) if path.suffix in (".so", ".dylib", ".dll")},
    }


# before a library is loaded: one that was compiled for another processor ends the process without a word
_import_compiled("cpu").check()
