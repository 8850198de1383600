"""The CUDA toolkit of PyPI's pieces as CMake looks for it, for .ci/wheel-cuda: toolkit.py FOLDER fetches it there if there is none, and prints its root.

Exit status: 0; 5 PyPI does not give it.
"""

import sys
from pathlib import Path

from compile_check import CUBLAS, TOOLKIT, CannotCheckError, installed


def root(folder: Path) -> Path:
    """The toolkit's root below `folder`, with the names that a linker looks for: PyPI's packages have libcudart.so.13 alone. Raises CannotCheckError."""
    found = installed(TOOLKIT + CUBLAS, folder)
    for library in (found / "lib").glob("lib*.so.*"):
        name = library.with_name(f"{library.name.partition('.so.')[0]}.so")
        if not name.is_symlink():
            name.symlink_to(library.name)
    if not (found / "lib64").is_symlink():
        (found / "lib64").symlink_to("lib")
    return found


if __name__ == "__main__":
    try:
        print(root(Path(sys.argv[1]).resolve()))
    except CannotCheckError as error:
        print(error, file=sys.stderr)
        sys.exit(5)
