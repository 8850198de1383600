"""Lets the tests import `edgekv.lab` from the checkout: the product's wheel has no laboratory."""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).resolve().parents[1]
LAB = Path(os.environ.get("PLANTED_LAB", TESTS.parent / "edgekv" / "lab"))
"""tests/planted names a copy, in which it plants faults."""

IMPORT = f"import sys; sys.path.append({str(TESTS)!r}); import support.laboratory"
"""What lets a process of its own import it, too."""

COMMAND = [sys.executable, "-c", f"{IMPORT}; from edgekv.cli.main import main; main()"]
"""`edgekv` with the laboratory, as a process of its own."""


class _Checkout(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "edgekv.lab":
            return None
        return spec_from_file_location(fullname, LAB / "__init__.py", submodule_search_locations=[str(LAB)])


sys.meta_path.insert(0, _Checkout())
