"""Fetch the pinned llama.cpp and apply the patch series to it.

    python patches/apply.py --prepare DIR [--source PATH]   a patched source tree in DIR; unchanged files keep their times
    python patches/apply.py --check [--source PATH]         prove that the series applies, reverses and applies again
    python patches/apply.py --tree DIR [--reverse]          apply the series to (or take it back from) a tree that is already there
    python patches/apply.py --rehearse --source TREE        how many hunks hold in another version's source, as before a bump of the pin

PATH is an sdist of llama-cpp-python, an unpacked one, or a llama.cpp tree; without it, and without EDGEKV_LLAMA_SOURCE in the
environment, the sdist is fetched with `pip download`, checked against its hash and kept in the user's cache folder.
"""

import argparse
import filecmp
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAMP = ".edgekv-prepared"
# what the build needs of llama.cpp; the rest of the sdist (documents, test models) is ten times as large
WANTED = ("CMakeLists.txt", "LICENSE", "cmake", "common", "ggml", "include", "licenses", "scripts/ui-assets.cmake", "src",
          "tests/test-llama-archs.cpp",  # not for the build: tests/architectures makes models with it
          "tools/llama-bench", "tools/mtmd", "tools/server", "tools/ui", "vendor")


class PatchError(Exception):
    """Said to the user in one sentence."""


def read_pin() -> dict[str, str]:
    """The key = value lines of patches/UPSTREAM."""
    lines = (line.split("#")[0].strip() for line in (HERE / "UPSTREAM").read_text().splitlines())
    return {key.strip(): value.strip() for key, value in (line.split("=", 1) for line in lines if line)}


def series() -> list[Path]:
    return [HERE / name for name in (HERE / "series").read_text().split()]


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# ---- where the source comes from ------------------------------------------------------------------------------------------------


def fetch_sdist() -> Path:
    """The pinned sdist, from the cache folder or through pip; its hash is checked either way."""
    pin = read_pin()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edgekv"
    kept = cache / f"{pin['package'].replace('-', '_')}-{pin['version']}.tar.gz"
    if kept.is_file() and sha256(kept) == pin["sha256"]:
        return kept
    print(f"fetching {pin['package']}=={pin['version']} (77 MB) ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        # no build isolation: pip asks the sdist for its metadata, and would install a build backend for that
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation",
                   "--dest", folder, f"{pin['package']}=={pin['version']}"]
        environment = {**os.environ, "CMAKE_ARGS": "-DLLAMA_BUILD=OFF"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        found = list(Path(folder).glob("*.tar.gz"))
        if done.returncode != 0 or not found:
            reason = (done.stderr.strip().splitlines() or ["no file came"])[-1]
            raise PatchError(f"could not fetch {pin['package']}=={pin['version']} ({reason}); check the network, or set "
                             "EDGEKV_LLAMA_SOURCE to an sdist or a llama.cpp tree that is already there")
        got = sha256(found[0])
        if got != pin["sha256"]:
            raise PatchError(f"{found[0].name} has sha256 {got}, patches/UPSTREAM pins {pin['sha256']}; nothing was built from it")
        cache.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(".partial")
        shutil.copyfile(found[0], partial)
        partial.replace(kept)
    return kept


def unpack(source: Path, into: Path, wanted: tuple[str, ...] = WANTED) -> None:
    """Put the wanted part of llama.cpp, from an sdist or a tree, into an empty folder."""
    if source.is_dir():
        root = next((path for path in (source, source / "vendor" / "llama.cpp") if (path / "src" / "llama-graph.cpp").is_file()), None)
        if root is None:
            raise PatchError(f"{source} holds no llama.cpp: expected src/llama-graph.cpp in it, or in vendor/llama.cpp")
        for name in wanted:
            if (root / name).is_dir():
                shutil.copytree(root / name, into / name)
            elif (root / name).is_file():
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, into / name)
        return
    if not source.is_file():
        raise PatchError(f"{source} does not exist; it should be an sdist of llama-cpp-python or a llama.cpp tree")
    pin = read_pin()
    if sha256(source) != pin["sha256"]:
        raise PatchError(f"{source} is not the pinned sdist {pin['package']}=={pin['version']} (sha256 {pin['sha256']})")
    marker = "/vendor/llama.cpp/"
    with tarfile.open(source) as archive:
        for member in archive:
            name = member.name.partition(marker)[2]
            if member.isfile() and any(name == want or name.startswith(want + "/") for want in wanted):
                target = into / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.extractfile(member) as file:
                    target.write_bytes(file.read())


# ---- the series -----------------------------------------------------------------------------------------------------------------


def apply_series(tree: Path, reverse: bool = False) -> None:
    """Apply the patches in order (or take them back in reverse order); a failure names the patch and how to regenerate it."""
    try:
        import patch_ng
    except ImportError:
        raise PatchError("the patches are applied with the Python package patch-ng: pip install patch-ng") from None
    logging.getLogger("patch_ng").setLevel(logging.ERROR)
    patches = series()
    for path in reversed(patches) if reverse else patches:
        patch = patch_ng.fromfile(str(path))
        done = patch and (patch.revert(strip=0, root=str(tree)) if reverse else patch.apply(strip=0, root=str(tree), fuzz=False))
        if not done:
            verb = "be taken back from" if reverse else "be applied to"
            raise PatchError(f"{path.name} could not {verb} {tree}: the source differs from the pinned one. To regenerate it, apply the "
                             "patches before it, make its call sites by hand and save `git diff` under the same header "
                             "(patches/README.md, 'How to bump')")


def prepare(destination: Path, source: Path | None) -> None:
    """A patched tree in `destination`. A second call with the same pin, source and patches does nothing; after a change only the files
    that differ are written, so that an incremental build compiles only those."""
    stamp_text = "\n".join([read_pin()["sha256"], str(source or "pinned"), *(sha256(path) for path in [Path(__file__), *series()])])
    stamp = destination / STAMP
    if stamp.is_file() and stamp.read_text() == stamp_text:
        return
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        unpack(source or fetch_sdist(), fresh)
        apply_series(fresh)
        stamp.unlink(missing_ok=True)
        sync(fresh, destination)
    stamp.write_text(stamp_text)
    print(f"llama.cpp is ready in {destination} ({len(series())} patches)", flush=True)


def sync(fresh: Path, destination: Path) -> None:
    """Make `destination` equal to `fresh`, touching only what differs."""
    wanted = {path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()}
    for name in wanted:
        target = destination / name
        if not target.is_file() or not filecmp.cmp(fresh / name, target, shallow=False):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fresh / name, target)
    for path in [path for path in destination.rglob("*") if path.is_file()]:
        if path.relative_to(destination) not in wanted:
            path.unlink()


def check(source: Path | None) -> None:
    """Apply, reverse, compare with the original byte by byte, apply again."""
    with tempfile.TemporaryDirectory() as folder:
        pristine, tree = Path(folder) / "pristine", Path(folder) / "tree"
        pristine.mkdir()
        unpack(source or fetch_sdist(), pristine)
        shutil.copytree(pristine, tree)
        apply_series(tree)
        patched = changed_files(pristine, tree)
        apply_series(tree, reverse=True)
        if left := changed_files(pristine, tree):
            raise PatchError(f"after taking the series back these files differ from the original: {', '.join(map(str, left))}")
        apply_series(tree)
        if changed_files(pristine, tree) != patched:
            raise PatchError("applying the series a second time changed other files than the first time")
    print(f"{len(series())} patches apply, reverse and apply again; they change {', '.join(map(str, patched))}")


def rehearse(source: Path) -> None:
    """Say for each patch how many hunks stand where they stood in the pinned source, which moved, and which fail; against any version."""
    import patch_ng

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        unpack(source, tree)
        counts = {"stand": 0, "moved": 0, "failed": 0}
        for path in series():
            here = dict.fromkeys(counts, 0)
            for item in patch_ng.fromfile(str(path)).items:
                target = tree / item.target.decode()
                lines = target.read_bytes().splitlines(keepends=True) if target.is_file() else []
                shift = 0
                for hunk in item.hunks:
                    old, new = ([line[1:] for line in hunk.text if line[:1] in (b" ", sign)] for sign in (b"-", b"+"))
                    expected = hunk.startsrc - 1 + shift
                    found = sorted((at for at in range(len(lines) - len(old) + 1) if lines[at:at + len(old)] == old), key=lambda at: abs(at - expected))
                    here["failed" if not found else "stand" if found[0] == expected else "moved"] += 1
                    if found:
                        lines[found[0]:found[0] + len(old)] = new
                        shift += len(new) - len(old)
                if lines:
                    target.write_bytes(b"".join(lines))
            print(f"{path.parent.name}/{path.name}: {here['stand']} stand, {here['moved']} moved, {here['failed']} failed")
            counts = {name: counts[name] + here[name] for name in counts}
    print(f"{sum(counts.values())} hunks: {counts['stand']} stand, {counts['moved']} moved, {counts['failed']} failed")


def changed_files(one: Path, other: Path) -> list[Path]:
    names = {path.relative_to(root) for root in (one, other) for path in root.rglob("*") if path.is_file()}
    return sorted(name for name in names
                  if not ((one / name).is_file() and (other / name).is_file() and filecmp.cmp(one / name, other / name, shallow=False)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prepare", type=Path, metavar="DIR")
    what.add_argument("--check", action="store_true")
    what.add_argument("--tree", type=Path, metavar="DIR")
    what.add_argument("--rehearse", action="store_true")
    parser.add_argument("--reverse", action="store_true")
    parser.add_argument("--source", type=Path, default=os.environ.get("EDGEKV_LLAMA_SOURCE") or None)
    arguments = parser.parse_args()
    source = Path(arguments.source).expanduser() if arguments.source else None
    try:
        if arguments.prepare:
            prepare(arguments.prepare, source)
        elif arguments.check:
            check(source)
        elif arguments.rehearse:
            if source is None:
                parser.error("--rehearse needs --source, a tree of the other version")
            rehearse(source)
        else:
            apply_series(arguments.tree, arguments.reverse)
    except PatchError as error:
        print(f"edgekv patches: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
