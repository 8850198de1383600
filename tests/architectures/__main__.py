"""`python tests/architectures`: the table of models/README.md, measured."""

import argparse
import json
import runpy
import sys
import tempfile
from pathlib import Path

if not __package__:  # started as a folder: again, as a package
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("architectures", run_name="__main__", alter_sys=True)
    sys.exit()

from . import running, table
from .making import NotMadeError, compile_maker


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/architectures", description="What EdgeKV does with each architecture of the pinned llama.cpp.")
    parser.add_argument("--only", nargs="+", metavar="ARCH", help="these architectures; --json or the log tell more than a table of them")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each, as it is found (architectures/measuring.py, Found)")
    parser.add_argument("--allocations", action="store_true", help="instead: the plan's memory against what llama.cpp allocates, with odd keys too")
    parser.add_argument("--write", action="store_true", help="put the table into models/README.md")
    given = parser.parse_args()
    if given.write and given.only:
        parser.error("the table in models/README.md has all architectures: --write goes without --only")
    all_found = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            maker = compile_maker(Path(folder))
            for found in running.run_allocations(maker, given.only) if given.allocations else running.run_all(maker, given.only):
                all_found.append(found)
                print(json.dumps(found) if given.json else table.line(found), file=sys.stdout if given.json else sys.stderr, flush=True)
    except NotMadeError as error:
        print(f"tests/architectures: {error}", file=sys.stderr)
        return 1
    text, places = (table.allocations, table.ALLOCATIONS) if given.allocations else (table.text, (table.BEGIN, table.END))
    if given.write:
        table.put(text(all_found), *places)
    elif not given.json:
        print(text(all_found))
    return int(any(found.get("crashed") or found.get("wrong") for found in all_found))


if __name__ == "__main__":
    sys.exit(main())
