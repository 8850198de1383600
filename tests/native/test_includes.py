"""Includes of the native sources: what may know what, and no circle."""

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"
ROOTS = (NATIVE / "src", NATIVE, NATIVE / "include", NATIVE / "llama")
SOURCES = sorted(path for folder in ("src", "cuda", "emulator", "include", "llama", "server") for path in (NATIVE / folder).rglob("*")
                 if path.suffix in (".c", ".cpp", ".h", ".cu", ".cuh"))
MAY_INCLUDE = {
    "llama": {"llama", "include"},
    "server": {"server", "llama", "include"},
    "src/kernels": {"src/kernels"},
    "src/cache": {"src/cache", "src/kernels", "include", "llama"},
    "src/state": {"src/state", "src/cache", "src/kernels", "include", "llama"},
    "src/attention": {"src/attention", "src/state", "src/cache", "src/kernels", "include", "llama"},
    "src/context": {"src/context", "src/attention", "src/state", "src/cache", "include", "llama"},
    "src/api": {"src/api", "src/context", "src/attention", "src/state", "src/cache", "src/kernels", "include", "llama"},
    "cuda/kernels": {"cuda/kernels", "cuda", "src/kernels", "include"},
    "cuda/runtime": {"cuda/runtime", "cuda"},
    "cuda/engine": {"cuda/engine", "cuda/kernels", "cuda", "src/attention/cuda", "src/kernels", "include"},
    "emulator": {"emulator", "cuda"},
}
"""By folder. What the device's sources see of src is the engine's interface and the kernels' contracts."""


def includes(path: Path) -> list[Path]:
    """Those of ours."""
    names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(encoding="utf-8"), re.M)
    return [found.resolve() for name in names if (found := next((root / name for root in ROOTS if (root / name).is_file()), None))]


def folder(path: Path) -> str:
    return path.parent.relative_to(NATIVE).as_posix()


@pytest.mark.parametrize("of", MAY_INCLUDE)
def test_a_folder_knows_what_it_may_know(of: str):
    known = {f"{path.relative_to(NATIVE)} includes {found.relative_to(NATIVE)}" for path in SOURCES
             if f"{folder(path)}/".startswith(f"{of}/") for found in includes(path)
             if not any(folder(found) == name or folder(found).startswith(f"{name}/") and name != "cuda" for name in MAY_INCLUDE[of])}
    assert not known


def test_kernels_know_those_below_them():
    """Each of their folders those before its own, and what all share."""
    order = ["simd", "decode", "sketch", "select", "prefill", "matmul"]
    upward = {f"{path.relative_to(NATIVE)} includes {found.relative_to(NATIVE)}" for path in SOURCES for found in includes(path)
              if (of := folder(path).removeprefix("src/kernels/")) in order and (to := folder(found).removeprefix("src/kernels/")) in order
              and order.index(to) > order.index(of)}
    assert not upward and {name for name in order if (NATIVE / "src" / "kernels" / name).is_dir()} == set(order)


def test_the_readme_says_what_includes_what():
    """Of the folders of src."""
    rows = re.findall(r"^\| `native/(src/\w+)/` \|.*\| ([\w, ]+) \|$", (NATIVE / "README.md").read_text(encoding="utf-8"), re.M)
    said = {of: set() if names == "nothing" else set(names.split(", ")) for of, names in rows}
    found: dict[str, set[str]] = {of: set() for of in said}
    for path in SOURCES:
        for seen in includes(path):
            of, other = ("/".join(folder(one).split("/")[:2]) for one in (path, seen))
            if of in found and other not in (of, "include"):
                found[of].add(other.split("/")[1] if other.startswith("src/") else other.split("/")[0])
    assert len(said) == 6 and said == found


def test_no_header_includes_itself_through_others():
    edges = {path: includes(path) for path in SOURCES}
    done: set[Path] = set()

    def visit(path: Path, above: tuple[Path, ...]) -> None:
        assert path not in above, " -> ".join(one.name for one in (*above, path))
        if path not in done:
            for found in edges[path]:
                visit(found, (*above, path))
            done.add(path)

    for path in SOURCES:
        visit(path, ())


def test_an_enum_has_its_name_alone():
    """Of the namespaces that the host's sources share, those without a name too."""
    names: dict[str, list[str]] = {}
    for path in SOURCES:
        for name in re.findall(r"^\s*enum (?:class )?(\w+)\s*(?::\s*\w+\s*)?\{", path.read_text(encoding="utf-8"), re.M):
            names.setdefault(name, []).append(path.name)
    assert not {name: where for name, where in names.items() if len(where) > 1}
