"""EdgeKV: a tiered KV cache for llama.cpp, driven from Python.

`edgekv.Llama` is `llama_cpp.Llama` with KV options; `edgekv.runtime` attaches to any llama_context of the process. A `llama_cpp` that is
imported after this package runs on our libraries.
"""

from __future__ import annotations

import os

# in an editable install the libraries lie in another folder of the package than this file
lib_folder = next((folder for folder in (os.path.join(part, "lib") for part in __path__) if os.path.isdir(folder)), None)
"""The folder of our shared libraries; None in a source tree that was never installed."""


def _take_installed() -> None:
    """Replace this module by the installed package. In the folder of a clone Python finds the source tree first, which has no libraries."""
    import sys
    from importlib.metadata import PackageNotFoundError, distribution
    from importlib.util import module_from_spec, spec_from_file_location

    try:
        init = str(distribution("edgekv").locate_file("edgekv/__init__.py"))
    except PackageNotFoundError:
        return
    folder = os.path.dirname(init)
    spec = spec_from_file_location(__name__, init, submodule_search_locations=[folder])
    if spec is None or spec.loader is None or not os.path.isdir(os.path.join(folder, "lib")):
        return
    module = module_from_spec(spec)
    sys.modules[__name__] = module  # the import statement returns this
    spec.loader.exec_module(module)


if lib_folder is None:
    _take_installed()
else:
    import edgekv_libraries  # noqa: F401  # llama_cpp gets them when it is imported; a folder of `pip install --target` has no .pth files

TYPE_CHECKING = False  # as typing has it, which takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from edgekv import runtime
    from edgekv.cache_types import with_layer_types
    from edgekv.common.errors import ConfigError, DoesNotFit, EdgeKVError, ModelError
    from edgekv.config import KvOptions
    from edgekv.installing import install
    from edgekv.llama import Llama, with_head_errors
    from edgekv.runtime.runtime import Runtime

    __version__: str

__all__ = ["ConfigError", "DoesNotFit", "EdgeKVError", "KvOptions", "Llama", "ModelError", "Runtime", "__version__", "install", "runtime",
           "with_head_errors", "with_layer_types"]

owns_process = False
"""This process is our command line, which may handle signals: it says in a sentence how native code ended it. A library leaves signals alone."""


_PUBLIC = {"Llama": ("edgekv.llama", "Llama"), "KvOptions": ("edgekv.config", "KvOptions"), "Runtime": ("edgekv.runtime.runtime", "Runtime"),
           "runtime": ("edgekv.runtime", None), "with_head_errors": ("edgekv.llama", "with_head_errors"),
           "with_layer_types": ("edgekv.cache_types", "with_layer_types"), "install": ("edgekv.installing", "install"),
           **{name: ("edgekv.common.errors", name) for name in ("EdgeKVError", "ConfigError", "ModelError", "DoesNotFit")}}
"""Module and attribute of each public name; None: the module itself."""


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name == "__version__":
        beside = [one for one in os.listdir(os.path.dirname(__path__[0])) if one.startswith("edgekv-") and one.endswith(".dist-info")]
        if len(beside) == 1:  # where pip installed this; importlib.metadata knows also where else, and takes longer to import than a command to start
            return beside[0].removeprefix("edgekv-").removesuffix(".dist-info")
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("edgekv")
        except PackageNotFoundError:  # a source tree that was never installed
            return "0+unknown"
    if name not in _PUBLIC:
        raise AttributeError(f"module 'edgekv' has no attribute {name!r}")
    from importlib import import_module  # llama_cpp takes half a second; `edgekv --help` must not pay for it

    module, attribute = _PUBLIC[name]
    found = import_module(module)
    return found if attribute is None else getattr(found, attribute)
