"""`python tests/llama_cpp_python`: the package's own tests, of the pinned sdist, on its class and on ours. With --packages: other people's packages
that use it, each installed into an environment of its own on top of the present one."""

import argparse
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "patches"))

from apply import fetch_sdist  # noqa: E402 - patches/apply.py, which is in no package
from packages import PACKAGES  # noqa: E402

EXPECTED = {
    "assert tokens == [9419, 11, 1814, 0]": "assert tokens == [19556, 28, 905, 17]",
    '== " jumps over the lazy dog."': '== " is a classic example of a"',
    '== "true"': 'in ("true", "false")',
}
"""What the tests expect of their model, and of the default one, which is smaller and has another vocabulary."""


def with_packages(names: list[str]) -> int:
    """Install each, and run its test."""
    codes = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            venv.create(folder, symlinks=True)
            python, own = Path(folder, "bin", "python"), sysconfig.get_path("purelib", vars={"base": folder})
            Path(own, "present.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n", encoding="utf-8")
            subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES[name].needs.split()], check=True)
            test = Path(__file__).with_name("test_packages.py")
            codes.append(subprocess.run([python, "-m", "pytest", "-p", "no:cacheprovider", f"{test}::test_a_package_answers_from_ours[{name}]"],
                                        cwd=ROOT, check=False).returncode)
    return int(any(codes))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/llama_cpp_python", description=__doc__)
    parser.add_argument("--on", nargs="+", metavar="CLASS", default=["stock", "off", "exact", "sparse"],
                        help="stock, or a KV mode of edgekv.Llama (default: stock off exact sparse)")
    parser.add_argument("-k", dest="chosen", default="", help="as of pytest")
    parser.add_argument("--packages", nargs="*", choices=PACKAGES, metavar="NAME", help=f"of {', '.join(PACKAGES)} (default: all)")
    asked = parser.parse_args()
    if asked.packages is not None:
        return with_packages(asked.packages or list(PACKAGES))
    codes = []
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fetch_sdist()) as archive:
            for member in archive:
                inside = member.name.partition("/")[2]
                if inside.startswith(("tests/", "vendor/llama.cpp/models/ggml-vocab-llama-spm")):
                    member.name = inside
                    archive.extract(member, folder, filter="data")
        file = Path(folder, "tests", "test_llama.py")
        text = file.read_text(encoding="utf-8")
        for theirs, small in EXPECTED.items():
            assert theirs in text, f"the tests no longer say {theirs}"
            text = text.replace(theirs, small)
        file.write_text(text, encoding="utf-8")
        for one in asked.on:
            print(f"{one}:", flush=True)
            command = [sys.executable, "-m", "pytest", "-q", "-p", "presets", "-p", "no:cacheprovider", "--show-capture=no", "-k", asked.chosen, "tests"]
            environment = {**os.environ, "ASKED_CLASS": one, "PYTHONPATH": str(Path(__file__).parent)}
            codes.append(subprocess.run(command, cwd=folder, env=environment, check=False).returncode)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
