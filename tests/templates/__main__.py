"""`python tests/templates FOLDER`: what becomes of the messages of many shapes under each chat template (*.jinja) of a folder."""

import argparse
import runpy
import sys
import tempfile
from collections import Counter
from pathlib import Path

if not __package__:  # started as a folder: again, as a package
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("templates", run_name="__main__", alter_sys=True)
    sys.exit()

from .asking import FATES, fates


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/templates", description="What becomes of messages under each chat template of a folder.")
    parser.add_argument("folder", type=Path, help="its *.jinja files, such as models/templates of llama.cpp's repository")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these templates")
    given = parser.parse_args()
    found = [path for path in sorted(given.folder.glob("*.jinja")) if not given.only or path.stem in given.only]
    if not found:
        parser.error(f"{given.folder} has no such *.jinja file")
    total: Counter[str] = Counter()
    by_shape: dict[str, Counter[str]] = {}
    for path in found:
        with tempfile.TemporaryDirectory() as home:
            answers = fates(path, Path(home))
        for shape, fate in answers.items():
            by_shape.setdefault(shape, Counter())[fate] += 1
        total.update(answers.values())
        print(f"{path.stem:48} " + " ".join(f"{shape}: {fate};" for shape, fate in answers.items() if fate != "used"), flush=True)
    print(f"\n{'':28}" + "".join(f"{fate:>8}" for fate in FATES))
    for shape, counts in [*by_shape.items(), ("all", total)]:
        print(f"{shape:28}" + "".join(f"{counts[fate]:8}" for fate in FATES))
    return int(bool(total["500"] + total["lost"]))


if __name__ == "__main__":
    sys.exit(main())
