"""`python tests/llama_cpp_python`: the package's own tests, of the pinned sdist, on its class and on ours."""

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "patches"))

from apply import fetch_sdist  # noqa: E402 - patches/apply.py, which is in no package

EXPECTED = {
    "assert tokens == [9419, 11, 1814, 0]": "assert tokens == [19556, 28, 905, 17]",
    '== " jumps over the lazy dog."': '== " is a classic example of a"',
    '== "true"': 'in ("true", "false")',
}
"""What the tests expect of their model, and of the default one, which is smaller and has another vocabulary."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/llama_cpp_python", description=__doc__)
    parser.add_argument("--on", nargs="+", metavar="CLASS", default=["stock", "off", "exact", "sparse"],
                        help="stock, or a KV mode of edgekv.Llama (default: stock off exact sparse)")
    parser.add_argument("-k", dest="chosen", default="", help="as of pytest")
    asked = parser.parse_args()
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
