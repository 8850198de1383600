"""`python tests/architectures`: the table of models/README.md, measured."""

import argparse
import json
import runpy
import sys
from pathlib import Path

if not __package__:  # started as a folder: again, as a package
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("architectures", run_name="__main__", alter_sys=True)
    sys.exit()

from . import running, table
from .making import NotMadeError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/architectures", description="What EdgeKV does with each architecture of the pinned llama.cpp.")
    parser.add_argument("--only", nargs="+", metavar="ARCH", help="these architectures; --json or the log tell more than a table of them")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each, as it is found (architectures/measuring.py, Found)")
    parser.add_argument("--write", action="store_true", help="put the table into models/README.md")
    given = parser.parse_args()
    if given.write and given.only:
        parser.error("the table in models/README.md has all architectures: --write goes without --only")
    try:
        all_found = []
        for found in running.run_all(given.only):
            all_found.append(found)
            print(json.dumps(found) if given.json else table.line(found), file=sys.stdout if given.json else sys.stderr, flush=True)
    except NotMadeError as error:
        print(f"tests/architectures: {error}", file=sys.stderr)
        return 1
    if given.write:
        table.put(all_found)
    elif not given.json:
        print(table.text(all_found))
    return int(any(found.get("crashed") for found in all_found))


if __name__ == "__main__":
    sys.exit(main())
