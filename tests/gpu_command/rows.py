"""Runs in the installed package, as a script: measures one column and appends each row to a file as soon as it is complete.

    python rows.py --model FILE --label NAME --column sparse --device cuda --depths 131072,32768 --rows FILE [--vram BYTES] ...
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("model", "rows", "state"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--label", required=True)
    parser.add_argument("--column", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--depths", required=True)
    for name in ("vram", "steps", "warmup", "prompt", "threads"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--link", type=float)
    given = parser.parse_args()

    if given.column.startswith("stock"):
        os.environ["EDGEKV"] = "0"  # stock, whatever else there is
    from gpu_table import WAYS, DeviceBench, measure  # beside this script

    from edgekv.common.enums import DeviceKind
    from edgekv.common.errors import EdgeKVError

    numbers = {"n_steps": given.steps, "n_warmup": given.warmup, "n_prompt": given.prompt, "n_threads": given.threads}
    bench = DeviceBench(
        model=given.model, label=given.label, way=WAYS[given.column], device=DeviceKind(given.device),
        depths=tuple(int(depth) for depth in given.depths.split(",")), budget_bytes=given.vram, state=given.state,
        link_bytes_per_s=given.link, **{name: value for name, value in numbers.items() if value is not None})
    known = {row["depth"] for row in _known(given.rows) if {**row, **bench.identity} == row}
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    try:
        for row in measure(bench, known, say):
            with given.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
                file.flush()
                os.fsync(file.fileno())
            say(_said(row))
    except EdgeKVError as error:
        say(f"{bench.label}, {bench.way.name}: {error}")
        return error.exit_code
    return 0


def _known(path: Path) -> list[dict]:
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:  # cut off by a kill
            continue
    return found


def _said(row: dict) -> str:
    if row.get("note"):
        return f"{row['column']} at {row['depth']}: {row['note']}"
    prompt = f", prompts {row['prefill_tps']:.0f} t/s" if row.get("prefill_tps") else ""
    return (f"{row['column']} at {row['depth']}: {row['decode_ms_p50']:.2f} ms (p99 {row['decode_ms_p99']:.2f}, "
            f"{row['n_steps']} steps){prompt}")


if __name__ == "__main__":
    sys.exit(main())
