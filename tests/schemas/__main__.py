"""`python tests/schemas`: JSON-Schema-Test-Suite (draft 2020-12, the required part), or JSONSchemaBench, played through the masks of tokens."""

import argparse
import json
import random
import runpy
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if not __package__:  # started as a folder: again, as a package
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("schemas", run_name="__main__", alter_sys=True)
    sys.exit()

from edgekv import _native

SUITE = "jsonschema==4.26.0"
"""Its source package holds the suite."""
_FOLDER = "json/tests/draft2020-12/"
CLASSES = ("Github_trivial", "Github_easy", "Github_medium", "Github_hard", "Github_ultra", "Glaiveai2K", "JsonSchemaStore", "Kubernetes", "Snowplow",
           "WashingtonPost")
"""Of JSONSchemaBench."""


def fetch(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "jsonschema", "-d", str(folder), SUITE], check=True)
    return next(folder.glob("jsonschema-*.tar.gz"))


def groups(package: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(the file's name, a schema with its instances)"""
    with tarfile.open(package) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            inside = member.name.partition(_FOLDER)[2]
            if inside.endswith(".json") and "/" not in inside:
                for group in json.load(archive.extractfile(member)):
                    yield inside.removesuffix(".json"), group


def drawn(bench: Path, n_schemas: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """As `groups`, of JSONSchemaBench: as many schemas of each class, the same ones each time. Schemas without instances may be among them."""
    draw = random.Random(62)
    for name in CLASSES:
        files = sorted((bench / "maskbench" / "data").glob(f"{name}---*.json"))
        for path in draw.sample(files, n_schemas // len(CLASSES)):
            yield path.stem, json.loads(path.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/schemas", description="Plays a suite of JSON schemas through the masks of tokens.")
    parser.add_argument("--package", type=Path, help=f"the source package of {SUITE}, fetched by pip if not given")
    parser.add_argument("--bench", type=Path, metavar="FOLDER", help="instead: schemas of JSONSchemaBench, of which this is a checkout")
    parser.add_argument("--schemas", type=int, default=300, help="of --bench")
    parser.add_argument("--speed", metavar="MODEL", help="instead: what a schema costs answers of this model")
    parser.add_argument("--rounds", type=int, default=5, help="of --speed")
    given = parser.parse_args()
    if given.speed:
        from .speed import speeds

        for (n_clients, form), speed in (found := speeds(given.speed, given.rounds)).items():
            print(f"{n_clients} at once, {form:8} {speed:7.1f} tok/s each  {speed / found[n_clients, 'none']:.3f}")
        return 0
    _native.prepare()
    from edgekv.common.errors import ConfigError

    from .playing import Masks, spellings

    counts: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    masks = Masks()
    with tempfile.TemporaryDirectory() as home:
        for name, group in drawn(given.bench, given.schemas) if given.bench else groups(given.package or fetch(Path(home))):
            schema = group["schema"]
            counts["schemas"] += 1
            if why := masks.refusal(schema):
                counts["refused"] += 1
                refusals[why.partition(";")[0][:100]] += 1
                continue
            for test in group.get("tests", []):
                try:
                    taken = any(masks.take(schema, text) for text in spellings(test["data"], schema))
                except ConfigError as error:
                    counts["failed"] += 1
                    print(f"failed: {name}: {group['description']}: {error}")
                    continue
                counts[f"{'valid' if test['valid'] else 'invalid'} {'taken' if taken else 'not taken'}"] += 1
                if taken != test["valid"]:
                    print(f"{'wrong' if taken else 'missed'}: {name}: {group['description']}: {test['description']}")
    print("\nrefused, by reason:")
    for why, n in refusals.most_common():
        print(f"{n:5}  {why}")
    print(f"\n{counts['schemas']} schemas, {counts['schemas'] - counts['refused']} compiled, {counts['refused']} refused by name; instances: "
          f"{counts['valid taken']} valid taken, {counts['valid not taken']} not; {counts['invalid not taken']} invalid not taken, "
          f"{counts['invalid taken']} taken; {counts['failed']} failed.")
    return int(bool(counts["invalid taken"] + counts["failed"]))


if __name__ == "__main__":
    sys.exit(main())
