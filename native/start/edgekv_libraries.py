"""llama-cpp-python runs on our libraries where it has none of its own, and wherever edgekv is imported before it. The wheel has this file and
`edgekv.pth` beside the package. Each start of Python reads the second: it asks this module once llama_cpp is imported, and takes 0.1 ms."""

import os
import sys


class Libraries:
    """An entry of sys.meta_path: it looks at the module of llama_cpp that opens libraries, and changes the folder that they are looked for in."""

    @staticmethod
    def find_spec(name, path=None, _=None):
        if name != "llama_cpp._ctypes_extensions":
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            load = module.load_shared_library
            module.load_shared_library = lambda base_name, folder: _load(load, base_name, folder, os.path.dirname(module.__file__))

        spec.loader.exec_module = exec_module
        return spec


def _load(load, base_name, folder, package):
    """The library of llama_cpp with this name: ours, or the one in `folder`."""
    own = type(folder)(package, "lib")  # where LLAMA_CPP_LIB_PATH names no other place
    imported = getattr(sys.modules.get("edgekv"), "lib_folder", None)
    if imported is None and (folder != own or any(own.glob("*llama.*"))):
        return load(base_name, folder)
    ours = type(folder)(imported or os.path.join(os.path.dirname(os.path.abspath(__file__)), "edgekv", "lib"))
    if base_name == "llama":
        load("edgekv", ours).edgekv_init()  # a wheel for all processors opens ggml's library for this one; who uses edgekv hears what went wrong
    return load(base_name, ours)


sys.meta_path.insert(0, Libraries)
