"""Two places that name the same number or list agree."""

import re
from pathlib import Path

from edgekv import _native
from edgekv._native import weight_types
from edgekv.config import SelectionOptions
from edgekv.prefix_cache.folder import FolderPlace
from edgekv.prefix_cache.remote import RedisPlace
from edgekv.prefix_cache.results import StoreStats

ROOT = Path(__file__).resolve().parent.parent
def text(path: str) -> str:
    return re.sub(r"\s+", " ", (ROOT / path).read_text(encoding="utf-8").replace("\n *", "\n"))


def said(path: str, pattern: str) -> list[str]:
    """The groups of a pattern that matches exactly once in a file."""
    (found,) = re.findall(pattern, text(path))
    return [found] if isinstance(found, str) else list(found)


def test_contexts_that_are_attended_whole():
    assert said("cli/README.md", r"context of up to (\d+) tokens is attended whole") == [str(SelectionOptions.exact_tokens)]


def test_instruction_sets():
    source = (ROOT / "native/src/kernels/isa.cpp").read_text(encoding="utf-8")
    names = re.findall(r'return "(\w+)";', source)
    assert len(names) == 6
    assert said("native/include/edgekv.h", r"EDGEKV_ISA=([\w|]+) selects")[0].split("|") == names
    (line,) = re.findall(r"^\| `EDGEKV_ISA` \| (.*)$", (ROOT / "cli/README.md").read_text(encoding="utf-8"), re.M)
    assert list(dict.fromkeys(re.findall(r"`(\w+)`", line))) == names


def test_types_of_weights_with_kernels_of_ours():
    (kinds,) = said("native/src/kernels/matmul/products.h", r"enum class WeightType \{ ([\w, ]+) \}")
    names = {kind.upper() for kind in kinds.split(", ")}
    (listed,) = said("models/README.md", r"Kernels of ours multiply ([\w,\s]+?) on x86-64")
    assert set(re.split(r",\s+|\s+and\s+", listed)) == names
    layouts = weight_types.layouts()
    if _native.isa() == "amx" or ("AMX" not in layouts.values() and _native.isa() != "portable"):
        assert {name for name, layout in layouts.items() if weight_types.multiplied_by_us(name, layout)} == names
        assert not set(said("models/README.md", r"; others, (\w+) and (\w+) among them")) & names


def test_places_are_counted_by_name():
    names = {FolderPlace.name, RedisPlace.name}
    header = (ROOT / "native/include/edgekv_server.h").read_text(encoding="utf-8")
    (counted,) = re.findall(r"typedef struct \{([^}]*)\} edgekv_cached_tokens;", header)
    assert names <= set(StoreStats.__struct_fields__) and names <= set(re.findall(r"int (\w+);", counted))
