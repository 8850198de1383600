"""One part in a process of its own: child.py PART FILE writes its rows, one JSON object in a line each, into an open file."""

import json
import os
import sys
from importlib import import_module

from edgekv.proof.steps import HeadShape, Part, Row


def main() -> None:
    given = json.loads(sys.argv[1])
    part = Part(**{**given, "shape": HeadShape(**given["shape"])})
    with os.fdopen(int(sys.argv[2]), "w") as out:
        for case, outcome, said, *replay in import_module(f"edgekv.proof.{part.step}").run(part):
            row = Row(step=part.step, case=case, outcome=outcome.value, said=said, replay=replay[0] if replay else {})
            print(json.dumps(row), file=out, flush=True)


if __name__ == "__main__":
    main()
